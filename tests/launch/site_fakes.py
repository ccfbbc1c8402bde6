"""A site that is another folder of this machine, its zipapp called in this process; and a way to it that breaks."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from windlass.backends.door import Answer, RawAnswer
from windlass.core.errors import UnreachableError
from windlass.supervise.porter import COMMANDS, serve


class FolderDoor:
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
    ) -> RawAnswer:
        command = argv[-1]
        assert command in COMMANDS
        self.asked.append(command)
        content = stdin.read_bytes() if isinstance(stdin, Path) else stdin
        way, length = self.cuts.pop(0) if self.cuts else ("", 0)
        sink = io.BytesIO()
        serve(command, io.BytesIO(content[:length] if way == "up" else content), sink)
        if way == "up" or (way == "down" and length < len(sink.getvalue())):
            raise UnreachableError("cut", code="site-unreachable")
        return RawAnswer(0, sink.getvalue(), "")

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> Answer:
        assert argv[:2] == ["sh", "-c"], argv
        there = [path for path in argv[4:] if Path(path).exists() or Path(path).parent.name == "archives"]
        return Answer(0, "".join(f"{path}\n" for path in there), "")
