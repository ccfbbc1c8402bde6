from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.backends.slurm.fake_shell import FakeShell
from windlass.backends.site_shell import ShellResult
from windlass.backends.slurm.inventory import parse_nodes, parse_partitions, parse_time
from windlass.backends.slurm.probe import SCRIPT, Section, probe, profile_of, sections_of
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.sites.profile import Mapped, Profile
from windlass.sites.store import find_site

TEXTS = Path(__file__).with_name("texts")
TODAY = "2026-11-21"


def sections(version: str) -> dict[str, Section]:
    return sections_of((TEXTS / f"{version}.txt").read_text())


def probed(version: str, base: Profile | None = None) -> Profile:
    return profile_of(sections(version), "x", today=TODAY, base=base)


def test_the_real_lab_of_2205() -> None:
    profile = probed("22.05")
    main, low, short = (profile.partitions[name] for name in ("main", "low", "short"))
    assert (main.num_nodes, main.gpus, main.cpus, main.memory, main.arch) == (4, 4, 8, 8000 << 20, "x86_64")
    assert (main.time_max, short.time_max) == (86400.0, 120.0)
    assert (main.is_preempted, low.is_preempted, low.notice) == (False, True, 5.0)
    scheduler = profile.scheduler
    assert (scheduler.version, scheduler.partition, scheduler.accounting) == ("22.05.8", "main", False)
    assert (scheduler.kill_wait, scheduler.asks_memory, scheduler.preemptible) == (5.0, True, Mapped(partition="low"))
    assert (scheduler.accounts, scheduler.qos_known) == ((), ())
    assert (profile.env.python, profile.env.module_init) == ("python3", "")
    assert profile.fs.shared == "/root"


def test_the_real_lab_with_accounting() -> None:
    scheduler = probed("22.05-accounting").scheduler
    assert (scheduler.accounting, scheduler.account, scheduler.accounts) == (True, "lab", ("lab", "other", "root"))
    assert scheduler.qos_known == ("high", "limited", "low", "lowcancel", "normal")
    assert scheduler.priority == {"low": Mapped(qos="low"), "high": Mapped(qos="high")}
    assert scheduler.preemptible == Mapped(qos="low")
    assert not any(partition.is_preempted for partition in probed("22.05-accounting").partitions.values())


def test_a_newer_version_with_words_that_nobody_knew() -> None:
    profile = probed("25.05")
    assert set(profile.partitions) == {"workq", "cpu"}  # the others are down, or for root
    workq, cpu = profile.partitions["workq"], profile.partitions["cpu"]
    assert (workq.gpus, workq.gpu_type, workq.gres) == (4, "gh200", "gh200")
    assert (workq.memory, workq.cpus, workq.arch) == (460000 << 20, 288, "aarch64")
    assert (workq.num_nodes, workq.max_nodes, workq.features) == (4, 4, ("gh200", "rack1", "rack2"))
    assert workq.qos == ("workq_qos", "urgent")
    assert (cpu.gpus, cpu.time_max, cpu.cpus) == (0, 43200.0, 128)  # its QOS has a walltime
    scheduler = profile.scheduler
    assert (scheduler.version, scheduler.exclusive, scheduler.asks_memory) == ("25.05.9", True, False)
    assert (scheduler.account, scheduler.accounts) == ("abc123", ("abc123", "def456"))
    assert (scheduler.priority, scheduler.preemptible) == ({"urgent": Mapped(qos="urgent")}, Mapped(qos="spare"))
    assert (profile.net.interface, profile.net.interconnect) == ("hsn", "slingshot")
    assert (profile.fs.shared, profile.fs.node_local_is_memory) == ("/scratch/b5a/${user}", True)
    assert (profile.env.python, profile.env.module_init) == ("python3.12", "/etc/profile.d/lmod.sh")
    assert (profile.containers.kind, profile.containers.program) == ("apptainer", "singularity")


def test_what_was_guessed_is_not_called_measured() -> None:
    statuses = {fact: source.status for source in probed("25.05").sources for fact in source.facts}
    assert statuses == {
        "partitions": "measured",
        "scheduler": "measured",
        "fs": "unverified",
        "net.interface": "unverified",
    }


def test_lore_stays_and_measured_facts_replace_it(tmp_path: Path) -> None:
    base = find_site("isambard", tmp_path)
    stale = replace(base.partitions["workq"], cpus=1, time_max=1.0)
    profile = probed("25.05", replace(base, partitions={"workq": stale, "gone": stale}))
    workq = profile.partitions["workq"]
    assert (workq.cpus, workq.time_max, workq.cuda, workq.gpu_memory) == (288, 86400.0, "12.7", 95 << 30)
    assert "gone" not in profile.partitions
    assert profile.net.vars == base.net.vars
    assert profile.scheduler.exclude == base.scheduler.exclude
    assert profile.scheduler.warn_before == base.scheduler.warn_before
    assert len(profile.sources) == len(base.sources) + 2


def test_sources_of_partitions_that_are_gone_go_too(tmp_path: Path) -> None:
    profile = probed("22.05", find_site("isambard", tmp_path))
    facts = [fact for source in profile.sources for fact in source.facts]
    assert not any(fact.startswith("partitions.workq") for fact in facts)
    assert "net.vars" in facts
    assert profile.scheduler.partition == "main"


def test_a_machine_without_slurm_is_told_so() -> None:
    with pytest.raises(PreconditionError) as caught:
        profile_of({"programs": Section(0, "uv /usr/bin/uv\n")}, "x", today=TODAY)
    assert caught.value.code == "no-slurm"
    assert caught.value.hint == "name its login node: windlass site add NAME --ssh USER@HOST"


def test_a_controller_that_is_down_is_no_answer() -> None:
    found = sections("22.05")
    found["nodes"] = Section(1, "slurm_load_node error: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(UnreachableError, match="does not respond: slurm_load_node error: Unable to contact"):
        profile_of(found, "x", ssh="me@host", today=TODAY)


def test_the_file_that_makes_modules_is_one_that_does_so_in_a_bare_shell(tmp_path: Path) -> None:
    (tmp_path / "init").mkdir()
    init = tmp_path / "init" / "sh"
    begin = SCRIPT.index("ask module_init")
    question = SCRIPT[: SCRIPT.index("me=")] + SCRIPT[begin : SCRIPT.index("ask folders")]
    for text, found in (("module() { :; }", False), ("module() { :; }; MODULEPATH=/m", True)):
        init.write_text(text + "\n")
        env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "MODULESHOME": str(tmp_path)}
        done = subprocess.run(["sh"], input=question, env=env, capture_output=True, text=True)
        said = sections_of(done.stdout)["module_init"]
        assert said.code == 0, done
        assert (said.text.strip() == str(init)) is found or said.text.startswith("/etc/profile.d/")


@pytest.mark.parametrize(
    "lost", ["qos", "assoc", "account", "pythons", "module_init", "folders", "network", "user", "machine"]
)
def test_what_one_command_does_not_say_is_unknown_and_no_more(lost: str) -> None:
    found = {name: section for name, section in sections("25.05").items() if name != lost}
    assert profile_of(found, "x", today=TODAY).partitions["workq"].gpus == 4


def test_everything_is_asked_in_one_round_trip() -> None:
    shell = FakeShell("host", sh=ShellResult(0, (TEXTS / "22.05.txt").read_text(), "motd\n"))
    assert probe(shell, "x", ssh="me@host", today=TODAY).ssh == "me@host"
    assert shell.asked == [("sh",)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-00:00:00", 86400), ("02:03:04", 7384), ("30:00", 1800), ("UNLIMITED", None), ("", None), ("soon", None)],
)
def test_times(text: str, seconds: float | None) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("parse", [parse_nodes, parse_partitions])
@pytest.mark.parametrize("text", ["", "\n\n", "No nodes in the system\n", "NodeName\n", "a=b\n", "Name=x Gres=gpu:\n"])
def test_nonsense_is_nothing(parse: Callable[[str], list[object]], text: str) -> None:
    assert parse(text) == []


def test_a_reason_may_look_like_a_fact() -> None:
    (node,) = parse_nodes("NodeName=a Gres=gpu:2 RealMemory=10 Reason=was Gres=gpu:1 [root]\n")
    assert (node.gpus, node.memory) == (2, 10 << 20)


def test_two_kinds_of_gpu_have_no_one_name() -> None:
    (node,) = parse_nodes("NodeName=a Gres=gpu:a100:2(S:0),gpu:h100:1(S:1),nic:4\n")
    assert (node.gpus, node.gres) == (3, "")
