"""What differs between two machines or two runs, replaced by a word in angle brackets."""

from __future__ import annotations

import getpass
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windlass import __version__

__all__ = ["Normaliser"]

_BY_KEY = {
    **dict.fromkeys(("address", "cpu_model", "interpreter", "kernel", "libc", "os", "platform", "process"), "text"),
    **dict.fromkeys(("backend_id", "locator", "token"), "text"),
    **dict.fromkeys(("at", "started_at", "ended_at", "created_at", "updated_at", "port"), "number"),
    **dict.fromkeys(("num_cpus", "num_usable_cpus", "phase_s"), "number"),
}
"""Keys whose values differ, with what stands there instead; empty values stay."""
_HOSTS = ("host", "hostname", "leader", "hosts")
_PATTERNS = (
    (re.compile(r"\b[0-9a-f]{64}\b"), "<sha256>"),
    (re.compile(r"\b[0-9a-f]{40}\b"), "<sha1>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<token>"),
    (re.compile(r"(?<=commit )[0-9a-f]{12}\b"), "<sha1>"),
    (re.compile(r"windlass-[0-9a-f]{16}\.pyz"), "windlass-<digest>.pyz"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(Z|\+00:00)"), "<time>"),
    (re.compile(r"linux-(x86_64|aarch64)-glibc[\d.]+"), "<platform>"),
)


class Normaliser:
    """Replaces what belongs to this machine and this run.

    Args:
        root: folder of the stage; repository: the checkout.
    """

    def __init__(self, root: Path, repository: Path) -> None:
        self._words = {
            str(root): "<root>",
            sys.executable: "<python>",
            str(Path(sys.executable).resolve()): "<python>",
            sys.prefix: "<environment>",
            str(repository): "<repository>",
        }
        runs = root / "home" / "runs"
        for run in sorted(runs.iterdir()) if runs.is_dir() else ():
            self._words[run.name] = f"{run.name.rpartition('-')[0]}-<id>"
        self._words[f"on {platform.node()}"] = "on <host>"
        user = re.escape(getpass.getuser())
        self._whole = {
            re.compile(rf"(?<![\w.-]){re.escape(__version__)}(?![\w.-])"): "<version>",
            re.compile(rf"(?<![\w.-]){re.escape(platform.python_version())}(?![\w.-])"): "<python version>",
            re.compile(rf"(?<=/){user}(?=/|$)"): "<user>",
        }

    def text(self, text: str) -> str:
        """The text with paths, ids, digests, times and versions replaced."""
        for word, name in self._words.items():
            text = text.replace(word, name)
        for pattern, name in (*self._whole.items(), *_PATTERNS):
            text = pattern.sub(name, text)
        return text

    def data(self, value: Any, key: str = "") -> Any:
        """A JSON value with the same done to every text, and with values of keys that always differ replaced."""
        if isinstance(value, Mapping):
            if key in ("host", "machine"):  # this one
                return {name: part if name == "num_gpus" else f"<{name}>" for name, part in value.items()}
            inner = {name: key if key == "hosts" else str(name) for name in value}
            return {self.text(str(name)): self.data(part, inner[name]) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(part, key) for part in value]
        kind = _BY_KEY.get(key, "")
        if value and isinstance(value, {"text": str, "number": int | float}.get(kind, ())):
            return f"<{key}>"
        if value == platform.node() and key in _HOSTS:
            return "<host>"
        return self.text(value) if isinstance(value, str) else value
