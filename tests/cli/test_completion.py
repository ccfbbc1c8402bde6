"""Tab completion: every group and every option, as a shell asks, and in a real bash on a real terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from tests.cli.test_catalogue import ENTRIES, LEAVES, command
from tests.runs.journals import RunScript
from windlass.cli import main
from windlass.runs.home import Home

Completions = Callable[[str], list[str]]

FREE = (
    "N|KEY=VALUE|NAME=.*|METRIC=NUMBER|TIME|LINE|WHEN|DURATION|GLOB|WORDS|PATTERN|PREFIX|PROMPT.*|USER@HOST|SITE=.*|GROUP|"
    "ORGANIZATION/NAME|WORKSPACE|EXPERIMENT.*|.EXPERIMENT.*|.KEY=VALUE.*|.NAME=VALUE.*|"
)
FREE_NAMES = {
    ("launch", "name"),
    ("sweep launch", "name"),
    ("ckpt evaluate", "name"),
    ("beaker submit", "name"),
    ("beaker import", "name"),
    ("beaker secret push", "there"),
    ("stop", "reason"),
    ("beaker cancel", "reason"),
    ("beaker workspace create", "description"),
    ("beaker workspace budget", "budget"),
    ("beaker show", "experiment"),
    ("beaker logs", "experiment"),
    ("beaker fetch", "experiment"),
    ("beaker why", "experiment"),
    ("beaker fetch", "task"),
    ("secret set", "rest"),
    ("train worker", "task"),
    ("train worker", "device"),
    ("cluster submit", "arguments"),
    ("cluster submit", "more"),
    ("cluster exec", "command"),
    ("cluster logs", "run"),
    ("cluster rsync-up", "there"),
    ("cluster rsync-down", "there"),
}
"""Names that a person makes up, and what only Beaker knows, which no shell asks while somebody types."""


@pytest.fixture
def completions(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Completions:
    """What bash gets for a line; asserts that it gets nothing else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMP_WORDBREAKS", " \t\n\"'><=;|&(:")

    def complete(line: str, shell: str = "bash") -> list[str]:
        monkeypatch.setenv("_WINDLASS_COMPLETE", f"{shell}_complete")
        monkeypatch.setenv("COMP_LINE", line)
        capsys.readouterr()
        code = main([])
        captured = capsys.readouterr()
        assert (code, captured.err) == (0, ""), line
        return [entry.partition(",")[2] for entry in captured.out.splitlines()]

    return complete


def groups() -> Iterator[tuple[str, click.Group]]:
    pending = [(entry.name, command(entry.name)) for entry in ENTRIES]
    while pending:
        name, found = pending.pop()
        if isinstance(found, click.Group):
            yield name, found
            pending += [(f"{name} {key}", each) for key, each in found.commands.items()]


@pytest.mark.parametrize(("name", "group"), list(groups()), ids=[name for name, _ in groups()])
def test_every_group_completes_its_verbs(name: str, group: click.Group, completions: Completions) -> None:
    members = sorted(group.commands)
    assert sorted(completions(f"windlass {name} ")) == members
    assert completions(f"windlass {name} {members[0][:2]}")[0].startswith(members[0][:2])
    assert "--help" in completions(f"windlass {name} --")


@pytest.mark.parametrize(("name", "verb"), LEAVES, ids=[name for name, _ in LEAVES])
def test_every_verb_completes_its_options(name: str, verb: click.Command, completions: Completions) -> None:
    found = completions(f"windlass {name} --")
    options = [name for param in verb.params if isinstance(param, click.Option) for name in param.opts]
    assert set(found) >= {option for option in options if option.startswith("--")}
    completions(f"windlass {name} ")
    for option in options:
        completions(f"windlass {name} {option} ")


@pytest.mark.parametrize(("name", "verb"), LEAVES, ids=[name for name, _ in LEAVES])
def test_every_value_that_is_known_is_completed(name: str, verb: click.Command) -> None:
    unknown = [
        param.name
        for param in verb.params
        if not (isinstance(param, click.Option) and (param.is_flag or param.count))
        and param._custom_shell_complete is None
        and type(param.type) in (click.types.StringParamType, click.types.UnprocessedParamType)
        and not re.fullmatch(FREE, param.metavar or "-")
        and (name, param.name) not in FREE_NAMES
    ]
    assert unknown == []


@pytest.fixture
def run(home: Path) -> str:
    """A run of two tasks, one of which has two attempts and three replicas."""
    script = RunScript(Home(home), "hello-aaaaaaaa", replicas=3, others=("score",))
    return script.submit().start(1).start(2).close().id


def test_what_is_in_a_run_is_completed(run: str, completions: Completions) -> None:
    assert completions(f"windlass logs {run} --task ") == ["train", "score"]
    assert completions("windlass logs --task s") == ["score"]
    assert completions("windlass logs last --task=s") == ["score"]
    assert completions(f"windlass logs {run} --attempt ") == ["1", "2", "all"]
    assert completions(f"windlass logs {run} --task train --replica ") == ["0", "1", "2"]
    assert completions(f"windlass outputs fetch {run} -t tr") == ["train"]
    assert completions(f"windlass outputs pull {run} ") == ["train", "score"]
    assert completions("windlass ps --name ") == ["hello"]
    assert completions("windlass logs no-such-run --task ") == []


def test_overrides_are_completed_like_options_too(completions: Completions) -> None:
    Path("e.yaml").write_text("name: x\nparams: {lr: 1}\ntasks: {train: {run: a}}\n")
    assert completions("windlass launch e.yaml --params.") == ["--params.lr="]
    assert completions("windlass launch e.yaml '~params.") == ["~params.lr"]
    assert completions("windlass launch e.yaml --params.lr=") == [""]  # a value is free: bash offers files
    assert completions("windlass launch e.yaml --each params.") == ["params.lr="]
    assert "--on" in completions("windlass launch e.yaml --o")


def test_values_behind_an_equals_sign(completions: Completions, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completions("windlass launch e.yaml --on=isam") == ["isambard"]
    assert "workq" in completions("windlass launch e.yaml --on=isambard/wo")[0]
    monkeypatch.setenv("COMP_WORDBREAKS", " ")
    assert completions("windlass launch e.yaml --on=isam") == ["--on=isambard"]


def test_a_sweep_may_go_to_a_cluster(completions: Completions) -> None:
    folder = Home.default().path / "clusters" / "isle"
    folder.mkdir(parents=True)
    (folder / "cluster.yaml").write_text("name: isle\nplace: {ssh: {hosts: [h1]}}\n")
    (folder / "id").write_text("isle-1")
    assert completions("windlass sweep launch e.yaml --on is") == ["isambard", "isle"]
    assert completions("windlass launch e.yaml --on is") == ["isambard"]


def test_launchers_of_others_complete_their_options(completions: Completions) -> None:
    assert completions("windlass mason --clus") == ["--cluster"]
    assert "ai2/jupiter" in completions("windlass mason --cluster ai2/ju")
    assert "spec" in completions("windlass mason --emit ")
    assert completions("windlass mason --on isam") == ["isambard"]
    assert "--gpus" in completions("windlass gantry run --gp")
    assert completions("windlass gantry run --on isam") == ["isambard"]


def test_a_line_that_is_wrong_completes_nothing(completions: Completions) -> None:
    assert completions("windlass nope ") == []
    assert completions("windlass data nope ") == []
    assert completions("windlass gantry list ") == []
    assert completions("windlass logs --replica x --task ") == []
    completions("windlass launch --nope e.yaml ")
    completions("windlass launch e.yaml --help ")
    completions("windlass launch 'unclosed ")


def test_a_bug_prints_nothing_and_leaves_its_traceback(
    completions: Completions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*arguments: object) -> list[str]:
        raise ZeroDivisionError

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("windlass.sites.store.site_names", broken)
    assert completions("windlass site show ") == []
    assert "ZeroDivisionError" in next(tmp_path.rglob("crashes/*.txt")).read_text()


def test_ctrl_c_says_nothing(
    completions: Completions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("windlass.sites.store.site_names", interrupted)
    monkeypatch.setenv("_WINDLASS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_LINE", "windlass site show ")
    assert main([]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("is_completing", [True, False])
def test_ctrl_c_during_the_imports_is_no_traceback(is_completing: bool, home: Path) -> None:
    environment = os.environ | (
        {"_WINDLASS_COMPLETE": "bash_complete", "COMP_LINE": "windlass "} if is_completing else {}
    )
    program = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from windlass.cli import main\n"
        "sys.exit(main(['doctor']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == ("" if is_completing else "\ninterrupted\n")


class Bash:
    """An interactive bash on a terminal, with our completion script."""

    def __init__(self, folder: Path) -> None:
        bash = shutil.which("bash")
        assert bash is not None
        script = Path(sys.executable).with_name("windlass")
        environment = os.environ | {"PS1": "", "TERM": "dumb", "PATH": f"{script.parent}:{os.environ['PATH']}"}
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:  # pragma: no cover - another process
            os.chdir(folder)
            os.execve(bash, [bash, "--norc", "--noprofile", "-i"], environment)
        # One Tab lists, as two do by default; nothing is paged and nothing rings.
        self.send("bind 'set show-all-if-ambiguous on'; bind 'set page-completions off'; bind 'set bell-style none'\n")
        self.send('eval "$(windlass completion bash)"; printf "%s\\n" rea""dy\n')
        self.read_until("\nready")

    def send(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def read_until(self, text: str, limit_s: float = 60.0) -> str:
        """What the terminal shows until `text` is there; a limit that means hung."""
        shown = ""
        deadline = time.monotonic() + limit_s
        while text not in shown:
            assert time.monotonic() < deadline, f"no {text!r} in {shown!r}"
            if select.select([self._terminal], [], [], 1.0)[0]:
                shown += os.read(self._terminal, 65536).decode(errors="replace").replace("\r", "")
        return shown

    def tab(self, line: str, expected: str) -> str:
        """What is shown after `line` and Tab, until `expected`; the line is dropped."""
        self.send(f"{line}\t")
        shown = self.read_until(expected)
        self.send("\x15")  # Ctrl-U: Ctrl-C would drop what is typed next
        return shown

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._terminal)


@pytest.fixture
def bash(home: Path, tmp_path: Path) -> Iterator[Bash]:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    shell = Bash(tmp_path)
    yield shell
    shell.close()


@pytest.mark.system
def test_a_real_bash_completes(bash: Bash, run: str, tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("name: x\nparams: {lr: 1}\ntasks: {train: {run: a}}\n")
    shown = bash.tab("windlass data s", "show ")
    shown += bash.tab(f"windlass logs {run} --task ", "score")
    shown += bash.tab("windlass launch e.yaml params.l", "params.lr=")
    shown += bash.tab("windlass launch e.yaml --on=isamb", "isambard")
    shown += bash.tab("windlass launch e.y", "e.yaml ")
    assert "Traceback" not in shown


@pytest.mark.system
def test_no_group_shows_a_traceback_in_a_real_bash(bash: Bash) -> None:
    shown = ""
    for name, group in groups():
        first = min(group.commands)
        unique = next(
            first[:end] for end in range(1, 99) if sum(each.startswith(first[:end]) for each in group.commands) == 1
        )
        shown += bash.tab(f"windlass {name} {unique}", f"{first} ")
    assert "Traceback" not in shown


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_get_whole_words(
    shell: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_WINDLASS_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "windlass launch --on=isam")
    monkeypatch.setenv("COMP_CWORD", "2" if shell == "zsh" else "--on=isam")
    assert main([]) == 0
    assert "--on=isambard" in capsys.readouterr().out
