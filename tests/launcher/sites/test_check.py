from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from windlass.backends.site_shell import RawShellResult, ShellResult
from windlass.core.clock import FakeClock
from windlass.core.errors import UnreachableError, UsageError
from windlass.launcher.sites.check import check_site
from windlass.launcher.sites.check_history import SiteCheck, last_check, past_checks
from windlass.launcher.sites.check_script import CANNOT_SEE, check_script, check_variables
from windlass.sites.profile import (
    Exclusion,
    FileSystem,
    Health,
    Partition,
    Profile,
    SiteEnvironment,
    SiteNetwork,
    SiteScheduler,
    SiteVariable,
)
from windlass.sites.store import find_site, sites_folder

SITE = Profile(
    name="mine",
    scheduler=SiteScheduler(partition="gpu", account="abc", exclude=(Exclusion(host="n9"),)),
    partitions={"gpu": Partition(gpus=4, gres="h100", cpus=64, memory=64 << 30, time_max=120.0)},
    fs=FileSystem(shared="/shared/${user}"),
    env=SiteEnvironment(modules=("cuda/12",)),
    health=Health(),
)
OK = ("python", "ok", "3.11.7", "")


class FakeSlurm:
    """A site shell for files in memory, whose jobs do what the test says, at the look that the test says."""

    name, is_local = "fake", True

    def __init__(self, run: Callable[[FakeSlurm, str, int], str], *, begins_at_look: int = 1) -> None:
        self.files: dict[str, str] = {}
        self.scripts: list[str] = []
        self.gone: list[str] = []
        self.looks = 0
        self.is_full = self.is_refusing = False
        self._run, self._begins = run, begins_at_look
        self._states: dict[str, str] = {}
        self._sizes: dict[str, int] = {}

    def run_bytes(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> RawShellResult:
        raise NotImplementedError

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> ShellResult:
        content = stdin.read_bytes() if isinstance(stdin, Path) else stdin
        match argv:
            case ["id", "-un"]:
                return ShellResult(0, "me\n", "")
            case ["sbatch", "--version"]:
                return ShellResult(0, "slurm 25.05\n", "")
            case ["mkdir", *_]:
                return ShellResult(1, "", "mkdir: Disk quota exceeded\n") if self.is_full else ShellResult(0, "", "")
            case ["sh", "-c", 'cat >"$0"', name]:
                self.files[name] = content.decode(errors="replace")
                return ShellResult(0, "", "")
            case ["sbatch", *_]:
                return self._sbatch(content.decode())
            case ["scancel", *ids]:
                self.gone += ids
                return ShellResult(0, "", "")
            case ["scontrol", "show", "job", _]:
                return ShellResult(0, f"BatchHost=n1\n ExitCode={CANNOT_SEE}:0\n", "")
            case ["rm", "-rf", folder]:
                self.gone.append(folder)
                return ShellResult(0, "", "")
            case ["sh", "-c", _]:
                return self._look()
        raise AssertionError(argv)

    def _sbatch(self, script: str) -> ShellResult:
        if self.is_refusing:
            return ShellResult(1, "", "sbatch: error: Batch job submission failed: Invalid account\n")
        self.scripts.append(script)
        number = str(len(self.scripts))
        self._states[number] = "PENDING"
        found = re.search(r"--nodes=(\d+)", script)
        assert found is not None
        self._sizes[number] = int(found[1])
        return ShellResult(0, f"{number}\n", "")

    def _look(self) -> ShellResult:
        self.looks += 1
        lines = []
        for number, script in enumerate(self.scripts, 1):
            job = str(number)
            if self._states[job] == "PENDING" and self.looks >= self._begins:
                folder = re.search(r"^d=(\S+)$", script, re.MULTILINE)
                assert folder is not None
                self._states[job] = self._run(self, folder[1], self._sizes[job])
            lines.append(f"@@windlass job {job}|{self._states[job]}|Resources")
        lines.append("@@windlass squeue 0")
        for name, text in self.files.items():
            if "result-" in name or name.endswith("modules.missing"):
                lines += [f"@@windlass file {name}", text, "@@windlass end"]
        return ShellResult(0, "\n".join(lines) + "\n", "")

    def answer(self, folder: str, rank: int, *findings: tuple[str, str, str, str]) -> None:
        keys = ("name", "status", "message", "hint")
        data = [dict(zip(keys, finding, strict=True)) for finding in findings]
        result = {"rank": rank, "host": f"n{rank + 1}", "facts": {"cpus": 8}, "findings": data}
        self.files[f"{folder}/result-{rank}.json"] = json.dumps(result)


def good(site: FakeSlurm, folder: str, nodes: int) -> str:
    for rank in range(nodes):
        site.answer(folder, rank, OK)
    return "COMPLETED"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "windlass.pyz"
    path.write_bytes(b"zip")
    return path


def check(site: FakeSlurm, home: Path, archive: Path, profile: Profile = SITE, **options: object) -> SiteCheck:
    told: list[str] = []
    found = check_site(
        profile,
        home=home,
        shell=site,
        archive=archive,
        clock=FakeClock(),
        tell=told.append,
        **options,  # type: ignore[arg-type]
    )
    site.files["told"] = "\n".join(told)
    return found


def lines(found: SiteCheck) -> list[tuple[int, str, str]]:
    return [(finding.nodes, finding.name, finding.status) for finding in found.results]


def test_a_good_site_is_checked_on_one_node_and_on_two_and_kept(tmp_path: Path, archive: Path) -> None:
    site = FakeSlurm(good)
    found = check(site, tmp_path, archive)
    assert lines(found) == [
        (0, "login", "ok"),
        (1, "queue", "ok"),
        (1, "modules", "ok"),
        (1, "python", "ok"),
        (2, "queue", "ok"),
        (2, "modules", "ok"),
        (2, "python", "ok"),
    ]
    assert found.is_ok
    assert found.jobs == ("1", "2")
    assert found.facts == {"n1": {"cpus": 8}, "n2": {"cpus": 8}}
    assert past_checks(tmp_path, "mine") == [found]
    (folder,) = site.gone
    assert folder.startswith("/shared/me/windlass/checks/")


def test_the_nodes_are_told_what_the_profile_says(tmp_path: Path, archive: Path) -> None:
    site = FakeSlurm(good)
    check(site, tmp_path, archive, num_nodes=3)
    specs = {name.split("/")[-2]: json.loads(text) for name, text in site.files.items() if name.endswith("check.json")}
    assert set(specs) == {"1", "3"}
    assert (specs["3"]["nodes"], specs["3"]["gpus"], specs["3"]["node_local"]) == (3, 4, "/tmp")
    (nonce,) = [text for name, text in site.files.items() if name.endswith("/nonce")]
    assert specs["3"]["nonce"] == nonce
    assert "--nodes=3" in site.scripts[1]


def test_one_bad_node_of_two_is_named(tmp_path: Path, archive: Path) -> None:
    def run(site: FakeSlurm, folder: str, nodes: int) -> str:
        for rank in range(nodes):
            bad = ("gpus", "failed", "3 here, 4 in the profile", "correct it")
            site.answer(folder, rank, bad if rank else ("gpus", "ok", "4", ""))
        return "COMPLETED"

    site = FakeSlurm(run)
    found = check(site, tmp_path, archive)
    (gpus,) = [finding for finding in found.results if finding.name == "gpus" and finding.nodes == 2]
    assert (gpus.status, gpus.message, gpus.hint) == ("failed", "n2: 3 here, 4 in the profile", "correct it")
    assert site.gone == []  # the folder stays to be looked at
    assert not found.is_ok


def test_a_missing_module_is_named(tmp_path: Path, archive: Path) -> None:
    def run(site: FakeSlurm, folder: str, nodes: int) -> str:
        site.files[f"{folder}/modules.missing"] = "cuda/12\nmodule purge\n"
        return good(site, folder, nodes)

    found = check(FakeSlurm(run), tmp_path, archive)
    (modules, _) = [finding for finding in found.results if finding.name == "modules"]
    assert (modules.status, modules.message) == ("failed", "cannot load: cuda/12, module purge")


def test_a_folder_that_nodes_do_not_see_is_told_by_the_scripts_exit_code(tmp_path: Path, archive: Path) -> None:
    found = check(FakeSlurm(lambda *_: "FAILED"), tmp_path, archive, num_nodes=1)
    (shared,) = [finding for finding in found.results if finding.name == "shared"]
    assert shared.status == "failed"
    assert shared.message.startswith("n1 cannot see /shared/me/windlass/checks/")


def test_jobs_that_only_wait_are_cancelled_and_the_reason_is_told(tmp_path: Path, archive: Path) -> None:
    site = FakeSlurm(good, begins_at_look=10_000)
    found = check(site, tmp_path, archive, timeout_s=60.0)
    assert site.gone == ["1", "2"]
    assert [finding.message for finding in found.results if finding.name == "queue"] == [
        "job 1 is still queued after 60 s: Resources",
        "job 2 is still queued after 60 s: Resources",
    ]
    assert "job 1 waits: Resources" in site.files["told"]


def test_an_interrupted_check_leaves_no_job(tmp_path: Path, archive: Path) -> None:
    def run(site: FakeSlurm, folder: str, nodes: int) -> str:
        raise KeyboardInterrupt

    site = FakeSlurm(run)
    with pytest.raises(KeyboardInterrupt):
        check(site, tmp_path, archive)
    assert site.gone == ["1", "2"]


def test_a_broken_way_is_tried_again_and_jobs_go_on(tmp_path: Path, archive: Path) -> None:
    class Flaky(FakeSlurm):
        num_broken = 3

        def _look(self) -> ShellResult:
            if self.num_broken:
                self.num_broken -= 1
                raise UnreachableError("cannot reach fake: no route")
            return super()._look()

    site = Flaky(good)
    assert check(site, tmp_path, archive).is_ok
    assert site.files["told"].count("cannot reach fake: no route; trying again") == 1


def test_a_way_that_stays_broken_ends_with_its_jobs_unheard(tmp_path: Path, archive: Path) -> None:
    class Cut(FakeSlurm):
        def _look(self) -> ShellResult:
            raise UnreachableError("cannot reach fake: no route")

    found = check(Cut(good), tmp_path, archive, num_nodes=1, timeout_s=30.0)
    assert [finding.status for finding in found.results if finding.name == "queue"] == ["failed"]


def test_the_sites_guard_is_asked_first(tmp_path: Path, archive: Path) -> None:
    class Guarded(FakeSlurm):
        def run(self, argv: Sequence[str], **options: Any) -> ShellResult:
            if argv[0] == "guard":
                return ShellResult(1, "", "32 nodes are in use\n")
            return super().run(argv, **options)

    site = Guarded(good)
    profile = replace(SITE, scheduler=replace(SITE.scheduler, submit_guard=("guard", "--check")))
    found = check(site, tmp_path, archive, profile=profile, num_nodes=1)
    assert found.results[1].message == "`guard --check` refused: 32 nodes are in use"
    assert site.scripts == []


def test_what_slurm_refuses_is_a_finding(tmp_path: Path, archive: Path) -> None:
    site = FakeSlurm(good)
    site.is_refusing = True
    found = check(site, tmp_path, archive, num_nodes=1)
    assert lines(found) == [(0, "login", "ok"), (1, "queue", "failed")]
    assert found.results[1].message == "Batch job submission failed: Invalid account"


def test_a_full_quota_is_told_before_anything_is_queued(tmp_path: Path, archive: Path) -> None:
    site = FakeSlurm(good)
    site.is_full = True
    found = check(site, tmp_path, archive)
    (shared,) = found.results
    assert shared.name == "shared"
    assert shared.message.startswith("cannot write to /shared/me/windlass/checks/")
    assert shared.message.endswith(": mkdir: Disk quota exceeded")
    assert site.scripts == []


def test_a_site_without_a_shared_folder_is_refused(tmp_path: Path, archive: Path) -> None:
    with pytest.raises(UsageError) as caught:
        check(FakeSlurm(good), tmp_path, archive, profile=Profile(name="x"))
    assert caught.value.code == "site-no-shared-folder"
    assert past_checks(tmp_path, "x") == []


def test_a_broken_line_of_the_history_hides_no_other(tmp_path: Path, archive: Path) -> None:
    found = check(FakeSlurm(good), tmp_path, archive)
    path = sites_folder(tmp_path) / "mine.checks.jsonl"
    path.write_text('{"site": "mi\n[]\n' + path.read_text() + '{"schema": 9}\n')
    assert last_check(tmp_path, "mine") == found
    assert last_check(tmp_path, "other") is None


def test_the_script_asks_for_what_the_profile_says() -> None:
    script = check_script(SITE, "gpu", folder="/s/1", archive="/s/w.pyz", nodes=2, has_torch=True, patience_s=60.0)
    options = [line.split(None, 1)[1] for line in script.splitlines() if line.startswith("#SBATCH ")]
    for wanted in ("--partition=gpu", "--account=abc", "--exclude=n9", "--gres=gpu:h100:4", "--nodes=2", "--time=2"):
        assert wanted in options
    assert "--cpus-per-task=4" in options
    assert "--deadline=now+240" in options
    assert "--mem=8192M" in options
    assert "module load cuda/12" in script
    assert script.index("command -v module") < script.index("module load cuda/12")
    assert script.rstrip().endswith('python3 -I -S /s/w.pyz check "$d"')


def test_variables_follow_the_predicates_and_keep_no_token_open(tmp_path: Path) -> None:
    variables = (
        SiteVariable(name="A", value="${env.path}/lib"),
        SiteVariable(name="B", value="1", when=("multi-node",)),
        SiteVariable(name="C", value="1", when=("ray",)),
        SiteVariable(name="D", value="1", role="worker"),
        SiteVariable(name="E"),
    )
    profile = Profile(name="x", net=SiteNetwork(vars=variables))
    assert check_variables(profile, nodes=1, gpus=0, tokens={}) == {"E": None}
    known = check_variables(profile, nodes=2, gpus=0, tokens={"env.path": "/env"})
    assert known == {"A": "/env/lib", "B": "1", "E": None}
    isambard = check_variables(find_site("isambard", tmp_path), nodes=2, gpus=4, tokens={"env.path": "/e"})
    assert (isambard["LD_PRELOAD"] or "").startswith("/e/lib/")
