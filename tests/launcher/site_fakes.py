"""A site that is another folder of this machine, its zipapp called in this process; and a way to it that breaks."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from windlass import Run
from windlass.backends.site_shell import RawShellResult, ShellResult
from windlass.core.clock import SystemClock
from windlass.core.errors import UnreachableError
from windlass.launcher.gc import at_site
from windlass.launcher.remote import client, refresh
from windlass.launcher.remote import mirror as mirror_module
from windlass.launcher.remote.mirror import Mirror
from windlass.record import events
from windlass.record.journal import JournalWriter, read_journal
from windlass.runs.store import RunFolder
from windlass.supervise.remote.server import COMMANDS, serve


class FolderShell:
    """Calls the site's half directly. Each number in `cuts` breaks one call: after so many bytes there (up), or back (down).

    A cut upward is followed to its end by the site, as it is where sshd notices late.
    """

    is_local = False

    def __init__(self) -> None:
        self.name = f"site-{id(self)}"
        self.cuts: list[tuple[str, int]] = []
        self.asked: list[str] = []

    def run_bytes(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> RawShellResult:
        command = argv[-1]
        assert command in COMMANDS
        self.asked.append(command)
        content = stdin.read_bytes() if isinstance(stdin, Path) else stdin
        way, length = self.cuts.pop(0) if self.cuts else ("", 0)
        sink = io.BytesIO()
        serve(command, io.BytesIO(content[:length] if way == "up" else content), sink)
        if way == "up" or (way == "down" and length < len(sink.getvalue())):
            raise UnreachableError("cut", code="site-unreachable")
        return RawShellResult(0, sink.getvalue(), "")

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> ShellResult:
        assert argv[:2] == ["sh", "-c"], argv
        there = [path for path in argv[4:] if Path(path).exists() or Path(path).parent.name == "archives"]
        return ShellResult(0, "".join(f"{path}\n" for path in there), "")


class Elsewhere:
    """A run whose other half is a folder that is reached over its site shell alone."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run = run
        self.there = RunFolder(folder / "windlass" / "runs" / run.id)
        self.shell = FolderShell()
        (folder / "windlass.pyz").write_bytes(b"")
        self._archive = folder / "windlass.pyz"

    def mirror(self, *unused: object) -> Mirror:
        return Mirror(self.run.folder, PurePosixPath(self.there.path), self.shell, archive=self._archive)

    def says(self, kind: str, **data: Any) -> None:
        pen = JournalWriter(self.there.journal, "supervisor", SystemClock())
        pen.append(kind, **data)
        pen.close()

    def says_ended(self, verdict: str = "succeeded", cause: str = "ok") -> None:
        self.says(events.TASK_ENDED, task="main", job=1, attempt=1, verdict=verdict, cause=cause, message="")

    def prints(self, text: str) -> None:
        path = self.there.logs / "1" / "main" / "0.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    def kinds(self) -> list[str]:
        return [record.kind for record in read_journal(self.there.journal)]

    def is_silent(self, times: int = 50) -> None:
        self.shell.cuts = [("up", 0)] * times


def live_elsewhere(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    """Give a run another half in a folder that stands for its site."""
    folder.mkdir()
    found = Elsewhere(run, folder)
    for module in (mirror_module, at_site):
        monkeypatch.setattr(module, "mirror_of", found.mirror)
    monkeypatch.setattr(client, "_QUIET_S", 0.0)
    monkeypatch.setattr(refresh, "_LOOK_S", 0.0)
    monkeypatch.setattr(refresh, "_TROUBLED_S", 0.0)
    found.mirror().ship()
    found.mirror().push()
    return found
