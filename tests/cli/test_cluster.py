"""`windlass cluster` without hosts: files, questions, refusals, lists. tests/system/cluster has the rest."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Windlass
from windlass.backends.site_shell import SshShell
from windlass.cli.cluster import bringing, running, sessions
from windlass.cluster import up
from windlass.cluster.config import ClusterConfig
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import Choice, Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.places import MachinePlace
from windlass.cluster.providers.protocol import CreateRequest
from windlass.cluster.state import Intent, intent_data, machine_data
from windlass.config.loading import load_config
from windlass.core.clock import FakeClock
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.runs.home import Home
from windlass.testing.fake_cloud import FakeCloud

FILE = "name: lab\nplace: {ssh: {hosts: [h1, h2, h3]}}\ngroups: {workers: {count: 2}}\nttl: 30m\n"
RAY = """
cluster_name: Ray Lab
provider: {type: local, head_ip: h1, worker_ips: [h2]}
auth: {ssh_user: me}
file_mounts: {/data: ./data}
max_workers: 1
metadata: {x: 1}
"""


@pytest.fixture(autouse=True)
def _no_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here reaches a host; files are where it runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text(FILE)
    (tmp_path / "ray.yaml").write_text(RAY)
    (tmp_path / "train.py").write_text("")

    def unreachable(self: SshShell, *_: object, **__: object) -> None:
        raise UnreachableError(f"cannot reach {self.name}: no route", hint="plug it in", code="site-unreachable")

    monkeypatch.setattr(SshShell, "run_bytes", unreachable)
    monkeypatch.setattr(SshShell, "run", unreachable)


@pytest.fixture
def lab(home: Path) -> ClusterHome:
    """A cluster whose journal says that it is up."""
    config = load_config(ClusterConfig, FILE, source="cluster.yaml").value
    found = ClusterHome.create(Home(home), config)
    found.write_config(config)
    with found.acting() as journal:
        journal.append("cluster.wanted", state="up", why="")
        for name, group in (("h1", "head"), ("h2", "workers")):
            machine = Machine(id=f"{name}/t", token="t", group=group, state="running", choice=Choice(zone=name))
            journal.append("cluster.node", node=machine_data(machine))
    return found


def test_up_prints_its_plan_and_asks_for_yes_without_a_terminal(windlass: Windlass, home: Path) -> None:
    result = windlass("cluster", "up", "cluster.yaml")
    assert (result.code, result.out) == (8, "")
    assert result.err == (
        "lab on ssh: 3 nodes at first\n"
        "  GROUP    NODES  MACHINES\n"
        "  head     1      h1\n"
        "  workers  2      h2, h3\n"
        "  these hosts exist: processes of Ray are started on them, and no machine is made\n"
        "  every node ends itself after 30m00s\n"
        "note: cannot reach h1: no route\n"
        "note: cannot reach h2: no route\n"
        "note: cannot reach h3: no route\n"
        "error: cannot ask to bring lab up without a terminal          [not-confirmed]\n"
        "hint: `windlass cluster up cluster.yaml --yes` does it\n"
        "more: windlass explain not-confirmed\n"
    )
    assert not (home / "clusters").exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--min-workers", "2"], 8, "  workers  2      h2, h3"),
        (["--max-workers", "1"], 8, "  workers  1      h2, h3"),
        (["--min-workers", "1", "--max-workers", "2"], 3, "`max` is 2 and `min` 1"),
        (["--min-workers", "3"], 3, "the groups need 4 nodes with the head, and `ssh` names 3 hosts"),
        (["--min-workers", "2", "--max-workers", "1"], 3, "`max` is 1 and `min` 2"),
        (["-n", "other"], 8, "other on ssh: 3 nodes at first"),
        (["--no-restart"], 8, "cannot ask"),
        (["--restart-only"], 2, "`--restart-only` cannot be honoured: running nodes are never set up again"),
    ],
)
def test_ray_s_options_of_up_are_honoured_or_refused_with_the_reason(
    windlass: Windlass, options: list[str], code: int, message: str
) -> None:
    result = windlass("cluster", "up", "cluster.yaml", *options)
    assert (result.code, message in result.err) == (code, True), result.err


def test_counts_need_one_group(windlass: Windlass) -> None:
    Path("none.yaml").write_text("name: lab\nplace: {ssh: {hosts: [h1]}}\n")
    result = windlass("cluster", "up", "none.yaml", "--min-workers", "1")
    assert (result.code, "`--min-workers` needs one group of nodes, and lab has: none" in result.err) == (2, True)


@pytest.mark.parametrize("verb", ["submit", "exec"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--screen"], "`--screen` cannot be honoured: commands never depend on the connection"),
        (["--tmux"], "`--tmux` cannot be honoured"),
        (["-d", "--stop"], "`--detach` and `--stop` are mutually exclusive"),
        (["-d", "-p", "8265"], "`--detach` and `--port-forward` are mutually exclusive"),
    ],
)
def test_options_of_commands_that_cannot_be_honoured_are_refused(
    windlass: Windlass, lab: ClusterHome, verb: str, options: list[str], message: str
) -> None:
    result = windlass("cluster", verb, "lab", *options, "train.py")
    assert (result.code, message in result.err) == (2, True), result.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("show", "lba"), 4, "did you mean `lab`?"),
        (("exec", "other", "true"), 4, "no cluster `other`"),
        (("down", "none.yaml"), 4, "no such file: none.yaml"),
        (("submit", "lab", "none.py"), 4, "no such file: none.py"),
        (("logs", "lab", "--node", "h1", "--run", "x"), 2, "`--node` and `--run` are mutually exclusive"),
        (("sync", "lab"), 2, "the file of lab has no `files`"),
        (("rsync-up", "lab", "train.py"), 2, "needs both SOURCE and TARGET"),
        (("attach", "lab", "--new"), 2, "`--new` needs `--screen` or `--tmux`"),
        (("attach", "lab", "--screen", "--tmux"), 2, "mutually exclusive"),
        (("exec", "lab", "true"), 6, "cannot reach h1: no route"),
        (("down", "lab", "--workers-only"), 2, "a cluster ends as a whole"),
        (("up", "."), 2, "no cluster"),
    ],
)
def test_mistakes_are_named(
    windlass: Windlass, lab: ClusterHome, words: tuple[str, ...], code: int, message: str
) -> None:
    if words == ("up", "."):
        words, code, message = ("up", "./"), 2, "./ is a folder"
    result = windlass("cluster", *words)
    assert (result.code, message.removeprefix("./") in result.err) == (code, True), result.err


@pytest.mark.system
def test_ports_in_use_are_named() -> None:
    process = subprocess.Popen(
        ["sh", "-c", "echo 'bind: Address already in use' >&2; exit 255"], stderr=subprocess.PIPE
    )
    process.wait()
    with pytest.raises(PreconditionError, match="cannot forward port 1: bind: Address already in use") as caught:
        sessions._await_ports(process, [1])
    assert caught.value.code == "port-in-use"


def test_a_cluster_that_never_was_up_is_down_already(windlass: Windlass) -> None:
    result = windlass("cluster", "down", "cluster.yaml")
    assert (result.code, result.err) == (0, "lab was never up\n")


def test_ray_s_file_is_printed_as_ours_with_what_is_done_otherwise(windlass: Windlass) -> None:
    result = windlass("cluster", "import", "ray.yaml")
    assert result.code == 0
    assert "note: the cluster is called `ray-lab`, not `Ray Lab`\n" in result.err
    assert "note: `metadata` is not read, by Ray neither\n" in result.err
    config = load_config(ClusterConfig, result.out, source="out").value
    assert config.place.ssh is not None
    assert (config.name, config.place.ssh.hosts, config.place.ssh.user) == ("ray-lab", ("h1", "h2"), "me")
    assert config.files == {"/data": "./data"}
    refused = windlass("cluster", "import", "cluster.yaml")
    assert (refused.code, "name: lab\n" in refused.out) == (0, True)
    Path("task.yaml").write_text("resources: {accelerators: A100:8}\nrun: python train.py\n")
    sky = windlass("cluster", "up", "task.yaml")
    assert (sky.code, "windlass cluster import task.yaml > cluster.yaml" in sky.err) == (2, True), sky.err
    Path("ray.yaml").write_text(RAY.replace("type: local", "type: gcp"))
    refused = windlass("cluster", "import", "ray.yaml")
    assert (refused.code, "ray.yaml:3:" in refused.err, "use one of: local, aws" in refused.err) == (3, True, True)


def test_lists_and_pages_come_from_the_journal_and_say_what_does_not_respond(
    windlass: Windlass, lab: ClusterHome
) -> None:
    assert re.fullmatch(
        r"NAME  PLACE  STATE  NODES               SINCE\nlab   ssh    up     1 head \+ 1 workers  \d+s ago\n",
        windlass("cluster", "ls").out,
    )
    (row,) = json.loads(windlass("cluster", "ls", "--json").out)["clusters"]
    assert (row["name"], row["state"], row["nodes"]) == ("lab", "up", {"head": 1, "workers": 1})
    shown = windlass("cluster", "show", "lab")
    assert (shown.code, shown.err) == (0, "")
    assert "  unreachable  cannot reach h1: no route; cannot reach h2: no route\n" in shown.out
    data = json.loads(windlass("cluster", "show", "lab", "--json").out)
    assert (data["schema"], [each["id"] for each in data["machines"]]) == ("windlass.cluster/1", ["h1/t", "h2/t"])
    (lab.path / "cluster.yaml").write_text("place: 3\n")
    assert "damaged" in windlass("cluster", "ls").out


def test_looking_creates_nothing(windlass: Windlass, home: Path) -> None:
    assert windlass("cluster", "ls").err == "no clusters yet; bring one up with `windlass cluster up FILE`\n"
    windlass("cluster", "show", "lab")
    assert not home.exists() or list(home.iterdir()) == []


@pytest.mark.system
@pytest.mark.parametrize("words", [["ls"], ["show", "lab"]])
def test_looking_imports_no_library_of_a_cloud_and_no_ray(
    lab: ClusterHome, home: Path, words: list[str], tmp_path: Path
) -> None:
    code = (
        "import sys\nfrom windlass.cli import main\ncode = main(['cluster', *sys.argv[1:]])\n"
        "print(code, sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))\n"
    )
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "WINDLASS_HOME": str(home), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code, *words], env=environ, capture_output=True, text=True)
    first, _, modules = done.stdout.splitlines()[-1].partition(" ")
    assert first == "0", done.stderr
    found = {name for name in json.loads(modules.replace("'", '"')) if not name.startswith(("_", "cython"))}
    assert found <= {"click", "windlass", "yaml", "sitecustomize"}


# --------------------------------------------------------------------------------- what --start and --stop are for


class Story:
    """What a command line did; each step has a result, or raises it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.results: dict[str, object] = {"up": None, "head": None, "run": 37, "down": None}

    def step(self, name: str) -> Callable[..., object]:
        def do(*_: object, **__: object) -> object:
            self.told.append(name)
            result = self.results[name]
            if isinstance(result, BaseException):
                raise result
            return result

        return do


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch, lab: ClusterHome) -> Story:
    found = Story()
    monkeypatch.setattr(up, "bring_up", found.step("up"))
    monkeypatch.setattr(up, "bring_down", found.step("down"))
    monkeypatch.setattr(running, "head_of", found.step("head"))
    monkeypatch.setattr(running, "_run", found.step("run"))
    return found


def submit(windlass: Windlass, *options: str) -> tuple[int, str]:
    result = windlass("cluster", "submit", "cluster.yaml", *options, "train.py")
    return result.code, result.err


FAILED = PreconditionError("it failed", code="node-failed")


@pytest.mark.parametrize(
    ("options", "changes", "code", "expected"),
    [
        ([], {}, 37, ["head", "run"]),
        (["--stop"], {}, 37, ["head", "run", "down"]),
        (["--start", "--stop", "--yes"], {}, 37, ["up", "head", "run", "down"]),
        (["--stop"], {"run": 0, "down": FAILED}, 1, ["head", "run", "down"]),
        (["--stop"], {"down": FAILED}, 37, ["head", "run", "down"]),
        (["--start", "--stop", "--yes"], {"up": FAILED}, 8, ["up", "down"]),
        (["--start", "--yes"], {"up": FAILED}, 8, ["up"]),
        (["--stop"], {"run": KeyboardInterrupt()}, 130, ["head", "run", "down"]),
        (["--stop"], {"run": RuntimeError("a bug")}, 70, ["head", "run", "down"]),
        (
            ["--start", "--stop", "--yes"],
            {"up": PreconditionError("other settings", code="cluster-changed")},
            8,
            ["up"],
        ),
    ],
)
def test_stop_brings_the_cluster_down_whatever_the_result(
    windlass: Windlass,
    story: Story,
    options: list[str],
    changes: dict[str, object],
    code: int,
    expected: list[str],
) -> None:
    story.results |= changes
    found, err = submit(windlass, *options)
    assert (found, story.told) == (code, expected), err
    assert ("lab is not down: windlass cluster down lab" in err) == (changes.get("down") is FAILED)


def test_a_question_that_nobody_answers_ends_nothing(windlass: Windlass, story: Story, lab: ClusterHome) -> None:
    with lab.acting() as journal:
        journal.append("cluster.wanted", state="down", why="")
    code, err = submit(windlass, "--start", "--stop")
    assert (code, story.told) == (8, [])
    assert "`windlass cluster submit cluster.yaml --yes` does it" in err


def test_a_file_that_does_not_fit_is_refused_before_its_plan_and_ends_nothing(windlass: Windlass, story: Story) -> None:
    Path("cluster.yaml").write_text(FILE + "setup: [make]\n")
    code, err = submit(windlass, "--start", "--stop", "--yes")
    assert (code, story.told) == (8, [])
    assert "the cluster lab is up with other settings: setup" in err
    assert "cannot reach" not in err


def test_hosts_that_do_not_respond_are_not_called_free_of_strays(windlass: Windlass, lab: ClusterHome) -> None:
    for options in ([], ["--yes"]):
        result = windlass("cluster", "reconcile", "lab", *options)
        assert (result.code, result.out) == (6, "")
        assert "not looked at: cannot reach h1: no route" in result.err
        assert "not looked at: cannot reach h3: no route" in result.err
        assert "no machine that should not exist" not in result.err


# ----------------------------------------------------------------------------------------------------- rented machines

RENTED = "name: rented\nplace: {aws: {region: us-west-2}}\nhead: {types: [small]}\n"


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> FakeCloud:
    found = FakeCloud(FakeClock(), random.Random(0))

    def nowhere(machine: Machine) -> NodeHost:
        raise AssertionError("no machine is reached")

    monkeypatch.setattr(bringing, "place_of", lambda *_: MachinePlace(provider=found, host=nowhere))
    return found


def test_machines_that_ended_themselves_are_not_made_again_without_a_question(
    windlass: Windlass, home: Path, cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("rented.yaml").write_text(RENTED)
    cluster = ClusterHome.create(Home(home), load_config(ClusterConfig, RENTED, source="rented.yaml").value)
    request = CreateRequest(token="1", cluster=cluster.id, group="head", count=1, choice=Choice(type="small"))
    (head,) = cloud.add(request)
    with cluster.acting() as journal:
        journal.append("cluster.wanted", state="up", why="")
        journal.append("cluster.node", node=machine_data(head))
    made: list[str] = []
    monkeypatch.setattr(up, "bring_up", lambda *_, **__: made.append("up"))
    assert windlass("cluster", "up", "rented.yaml").code == 0
    assert made == ["up"]
    cloud.kill(head.id)
    refused = windlass("cluster", "up", "rented.yaml")
    assert (refused.code, made) == (8, ["up"])
    assert "cannot ask to bring rented up without a terminal" in refused.err


def test_logs_of_a_node_whose_machine_has_ended_are_those_that_were_fetched_when_it_failed(
    windlass: Windlass, home: Path
) -> None:
    cluster = ClusterHome.create(Home(home), load_config(ClusterConfig, RENTED, source="rented.yaml").value)
    head = Machine(id="i-1", token="t", group="head", state="ended")
    with cluster.acting() as journal:
        journal.append("cluster.wanted", state="up", why="")
        journal.append("cluster.node", node=machine_data(head))
    missing = windlass("cluster", "logs", "rented", "--node", "head")
    assert (missing.code, "the cluster rented is not up" in missing.err) == (8, True)
    (cluster.logs / "i-1").mkdir(parents=True)
    (cluster.logs / "i-1" / "setup.log").write_text("$ make\nno rule\n")
    for name in ("head", "i-1"):
        result = windlass("cluster", "logs", "rented", "--node", name)
        assert (result.code, result.out) == (0, "$ make\nno rule\n")
        assert result.err == (
            "the cluster rented is not up; these are the logs that were fetched when the node failed\n-- setup.log\n"
        )


def test_a_request_without_a_reply_is_not_listed_as_no_machine(windlass: Windlass, home: Path) -> None:
    cluster = ClusterHome.create(Home(home), load_config(ClusterConfig, RENTED, source="rented.yaml").value)
    assert json.loads(windlass("cluster", "ls", "--json").out)["clusters"][0]["state"] == "empty"
    intent = Intent(token="1", group="head", count=1, choice=Choice(type="small"), asked_at=0.0)
    with cluster.acting() as journal:
        journal.append("cluster.wanted", state="up", why="")
        journal.append("cluster.intent", **intent_data(intent))
    assert json.loads(windlass("cluster", "ls", "--json").out)["clusters"][0]["state"] == "unknown"


@pytest.mark.parametrize("options", [("up",), ("submit", "--start"), ("submit", "--start", "--stop")])
def test_a_failed_up_says_what_is_paid_for_unless_it_is_brought_down(
    windlass: Windlass, cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    Path("rented.yaml").write_text(RENTED)

    def fail(cluster: ClusterHome, *_: object, **__: object) -> None:
        with cluster.acting() as journal:
            journal.append("cluster.wanted", state="up", why="")
            journal.append("cluster.node", node=machine_data(Machine(id="m", token="1", group="head", state="running")))
        raise PreconditionError("m: no Ray", hint="windlass cluster logs rented", code="node-failed")

    monkeypatch.setattr(up, "bring_up", fail)
    monkeypatch.setattr(up, "bring_down", lambda *_, **__: None)
    script = ["train.py"] if options[0] == "submit" else []
    result = windlass("cluster", *options, "--yes", "rented.yaml", *script)
    assert result.code == 8
    hint = (
        "hint: windlass cluster logs rented; what was made stays and is paid for until `windlass cluster down rented`"
    )
    assert (hint in result.err) is ("--stop" not in options), result.err


@pytest.mark.parametrize("text", [RENTED, FILE])
def test_files_that_are_missing_here_are_named_before_anything_is_made(
    windlass: Windlass, cloud: FakeCloud, text: str
) -> None:
    cloud.is_rented = text is RENTED
    Path("new.yaml").write_text(text.replace("name: lab", "name: new") + "files: {/data: none}\n")
    result = windlass("cluster", "up", "--yes", "new.yaml")
    assert result.code == 3
    assert "no such file or folder: " in result.err
    assert cloud.made.total() == 0
