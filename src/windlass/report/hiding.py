"""Redaction of secrets in reports from user code, before they reach the journal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.record.redact import Redactor

__all__ = ["Hiding"]

_MAX_REMEMBERED = 10_000


class Hiding:
    """Redactor that replaces the secrets in this process's environment with `[secret NAME]`.

    The supervisor passes the names of variables that are secrets (`WINDLASS_SECRET_NAMES`) and of those with the path of
    a secret's file (`WINDLASS_SECRET_FILES`); the process already has the values.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._values = dict(_listed(environ, "WINDLASS_SECRET_NAMES"))
        self._paths = dict(_listed(environ, "WINDLASS_SECRET_FILES"))
        self._redactor: Redactor | None = None
        self._names: dict[str, str] = {}

    def text(self, text: str) -> str:
        """Return `text` with secrets replaced."""
        if not (self._values or self._paths):
            return text
        if self._redactor is None:
            from windlass.record.redact import Redactor  # lazy: only a job with secrets needs it

            self._redactor = Redactor(dict(self._secrets()))
        return self._redactor.redact_text(text)

    def name(self, name: str) -> str:
        """Return a name with secrets replaced, using a cache, since the names of metrics repeat."""
        if not (self._values or self._paths):
            return name
        if name not in self._names:
            if len(self._names) >= _MAX_REMEMBERED:
                self._names.clear()
            self._names[name] = self.text(name)
        return self._names[name]

    def _secrets(self) -> Iterator[tuple[str, bytes]]:
        for name, value in self._values.items():
            yield name, os.fsencode(value)
        for name, path in self._paths.items():
            try:
                yield name, Path(path).read_bytes()
            except OSError:  # gone: the task is over, or the file was meant for another process
                continue


def _listed(environ: Mapping[str, str], variable: str) -> Iterator[tuple[str, str]]:
    for name in environ.get(variable, "").split(","):
        if name in environ:
            yield name, environ[name]
