"""Where a system test plays: a folder of code, a WINDLASS_HOME, and eyes for everything that runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.lab.archives import warm
from windlass import Options, Run, launch
from windlass.core.errors import WindlassError
from windlass.core.process import ProcessId, is_alive, send_signal
from windlass.launcher.prepare import prepare_file
from windlass.record import events
from windlass.record.frames import Record
from windlass.record.journal import read_journal
from windlass.record.state import Attempt, End, State
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, run_ids

__all__ = ["PYTHON", "Stage", "living", "until"]

PYTHON = sys.executable
"""What stands for `python` in the tests' commands: no shims between a test and its processes."""

_TRAINER = Path(__file__).with_name("trainer.py")
_POLL_S = 0.02
_RECONCILE_EVERY_S = 0.5


def until(
    condition: Callable[[], bool],
    what: str,
    timeout_s: float = 300.0,
    *,
    story: Callable[[], str] = str,
    poll_s: float = _POLL_S,
) -> None:
    """Wait for something to become true; fails naming it, with the story until then, when it does not."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout_s:g} s still not: {what}\n{story()}".rstrip())
        time.sleep(poll_s)


def living(*needles: str) -> dict[int, str]:
    """Command lines of living processes with any of the words in command line or environment at start."""
    wanted = [needle.encode() for needle in needles]
    return {
        pid: text.partition(b"\0\0")[0].replace(b"\0", b" ").decode(errors="replace")
        for pid, text in _process_texts()
        if pid != os.getpid() and any(needle in text for needle in wanted)
    }


def _process_texts() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        text = b""
        for part in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                text += (entry / part).read_bytes() + b"\0"
        if text.strip(b"\0"):  # a zombie has neither
            yield int(entry.name), text


class Stage:
    """Runs experiments of one test and cleans up behind them.

    Args:
        folder: fresh; gets `code` and `home`.
    """

    def __init__(self, folder: Path, home: Home) -> None:
        self.home = home
        warm(home)
        self.code = folder / "code"
        self.code.mkdir(parents=True, exist_ok=True)
        self.starts = folder / "starts"
        shutil.copy(_TRAINER, self.code / "trainer.py")

    def write(self, name: str, text: str) -> Path:
        """A file of the user's code."""
        path = self.code / name
        path.write_text(text)
        return path

    def experiment(self, spec: dict[str, Any], name: str = "play") -> Path:
        """An experiment file with the trace of starts among its variables; YAML is a superset of JSON."""
        spec = {"name": name, **spec}
        env = spec.setdefault("env", {})
        env.setdefault("vars", {})["STARTS"] = str(self.starts)
        return self.write(f"{name}.yaml", json.dumps(spec, indent=1))

    def launch(self, spec: dict[str, Any], *overrides: str, name: str = "play", options: Options | None = None) -> Run:
        """Start an experiment from this process."""
        path = self.experiment(spec, name)
        prepared = prepare_file(path, overrides, options or Options(allow_dirty=True), home=self.home)
        return launch(prepared)

    def task(self, command: str | list[str], **settings: Any) -> dict[str, Any]:
        """A spec with one task called `main` whose grace is short."""
        return {"tasks": {"main": {"run": command, "grace": "1s", **settings}}}

    def python(self, text: str, name: str = "user.py", /, **settings: Any) -> dict[str, Any]:
        """A spec with one task that runs a Python program."""
        self.write(name, text)
        return self.task([PYTHON, "-u", name], **settings)

    def runs(self, name: str) -> list[Run]:
        """The runs of an experiment."""
        return [
            Run(RunFolder(self.home.runs / run), self.home) for run in run_ids(self.home) if run.startswith(f"{name}-")
        ]

    def end(self, run: Run, timeout_s: float = 300.0) -> State:
        """Wait for a run's verdict as a client does: looking, and now and then reconciling."""
        next_at = time.monotonic() + _RECONCILE_EVERY_S
        deadline = time.monotonic() + timeout_s
        while not run.state.is_terminal:
            now = time.monotonic()
            assert now < deadline, f"{run.id} is {run.state} after {timeout_s:g} s:\n{self.story(run)}"
            if now > next_at:
                run.reconcile()
                next_at = now + _RECONCILE_EVERY_S
            time.sleep(_POLL_S)
        return run.state

    def records(self, run: Run, kind: str = "") -> list[Record]:
        """The journal by time, all of it or one kind."""
        found = [record for record in read_journal(run.folder.journal) if kind in ("", record.kind)]
        return sorted(found, key=lambda record: (record.at, record.writer, record.seq))

    def story(self, run: Run) -> str:
        """The journal and what went wrong of ours, for a failing test."""
        lines = [
            f"{record.at:.2f} {record.writer} {record.kind} {record.data}"
            for record in self.records(run)
            if record.kind not in (events.METRICS, events.PROGRESS, events.CHECKPOINT)
        ]
        lines += [path.read_text() for path in sorted(run.folder.jobs.rglob("*.crash"))]
        lines += [path.read_text() for path in sorted(run.folder.jobs.rglob("guard.out"))]
        return "\n".join(lines)

    def attempts(self, run: Run, task: str = "main") -> list[Attempt]:
        """The attempts of a task, in order."""
        found = run.facts.task(task).attempts
        return [found[number] for number in sorted(found)]

    def ends(self, run: Run, task: str = "main") -> list[End]:
        """How the attempts of a task ended."""
        return [attempt.end for attempt in self.attempts(run, task) if attempt.end is not None]

    def causes(self, run: Run, task: str = "main") -> list[str]:
        """The causes alone."""
        return [end.cause for end in self.ends(run, task)]

    def log(self, run: Run, attempt: int = 1, rank: int = 0, task: str = "main") -> str:
        """What one replica printed in one attempt."""
        return (run.folder.logs / str(attempt) / task / f"{rank}.log").read_text()

    def starts_of(self, path: Path | None = None) -> list[tuple[int, int, int]]:
        """(attempt, rank, pid) of every start of user code."""
        path = path or self.starts
        if not path.exists():
            return []
        numbers = [[int(word) for word in line.split()] for line in path.read_text().splitlines()]
        return [(attempt, rank, pid) for attempt, rank, pid in numbers]

    def doubled(self, path: Path | None = None) -> list[tuple[int, int]]:
        """(attempt, rank) of everything that was started more than once."""
        counts = Counter((attempt, rank) for attempt, rank, _ in self.starts_of(path))
        return [key for key, count in counts.items() if count > 1]

    def ours(self, run: Run, what: str, rank: int = 0, task: str = "main") -> int:
        """Number of the living `guard` or `supervisor` of a replica's newest job, or 0."""
        number = run.facts.task(task).newest_job
        path = run.folder.jobs / f"{task}-{number}" / f"guard-{rank}.json"
        if not path.exists():
            return 0
        text = json.loads(path.read_bytes())[what]
        return int(text.partition(":")[0]) if text != "None" and is_alive(ProcessId.parse(text)) else 0

    def user(self, run: Run, rank: int = 0, task: str = "main") -> int:
        """Number of the user's living process in the newest attempt, or 0."""
        newest = run.facts.task(task).newest_attempt
        text = newest.replicas[rank].process if newest is not None and rank in newest.replicas else ""
        return int(text.partition(":")[0]) if text and is_alive(ProcessId.parse(text)) else 0

    def wait_for_user(self, run: Run, rank: int = 0, task: str = "main") -> int:
        """The user's process, once it has been started."""
        until(lambda: self.user(run, rank, task) > 0, f"user code of rank {rank} runs", story=lambda: self.story(run))
        return self.user(run, rank, task)

    def wait_for_line(self, run: Run, line: str, attempt: int = 1, rank: int = 0, task: str = "main") -> None:
        """Wait until a replica has printed something."""
        path = run.folder.logs / str(attempt) / task / f"{rank}.log"
        until(
            lambda: path.exists() and line in path.read_text(),
            f"{line!r} is in {path}",
            story=lambda: self.story(run),
        )

    def survivors(self, run: Run, timeout_s: float = 60.0) -> dict[int, str]:
        """Processes of a run, of ours and of the user's, that do not go away."""
        tokens = [job.token for task in run.facts.tasks.values() for job in task.jobs.values()]
        deadline = time.monotonic() + timeout_s
        while True:
            left = living(str(run.folder.path), *tokens)
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.05)

    def close(self) -> None:
        """End whatever still runs, by force."""
        for run in [Run(RunFolder(self.home.runs / name), self.home) for name in run_ids(self.home)]:
            if not run.state.is_terminal:
                with contextlib.suppress(WindlassError, OSError):
                    run.stop(now=True)
            for pid in self.survivors(run, timeout_s=2.0):
                send_signal(pid, 9)
