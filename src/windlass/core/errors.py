"""Error classes of windlass.

    WindlassError            exit 1
    +-- UsageError           exit 2    invalid command line
    +-- SpecError            exit 3    invalid experiment file (lists every problem found)
    +-- NotFoundError        exit 4    no such run, task, file or secret
    +-- AccessError          exit 5    not allowed, or a secret is missing
    +-- UnreachableError     exit 6    cannot connect to a site or service
    +-- WaitTimeoutError     exit 7    timed out waiting
    +-- PreconditionError    exit 8    a precondition failed (dirty tree, full disk)
    +-- InternalError        exit 70   a bug in windlass

Every error has the user's value in its message, what to type next in its hint, and a slug that is an entry in
docs/errors.toml.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from windlass.core.dataclass import dataclass

__all__ = [
    "AccessError",
    "InternalError",
    "NotFoundError",
    "PreconditionError",
    "Problem",
    "SourcePlace",
    "SpecError",
    "UnreachableError",
    "UsageError",
    "WaitTimeoutError",
    "WindlassError",
]


@dataclass(frozen=True)
class SourcePlace:
    """Position of a problem in a file or on a command line; lines and columns count from 1."""

    source: str
    line: int = 0
    column: int = 0
    excerpt: str = ""

    def __str__(self) -> str:
        where = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        return f"{where}   {self.excerpt}" if self.excerpt else where


@dataclass(frozen=True)
class Problem:
    """Problem with the user's input: message, code, place, hint."""

    message: str
    code: str
    place: SourcePlace | None = None
    hint: str = ""

    @property
    def sentence(self) -> str:
        """Return the problem as one line, for tracebacks and other messages."""
        place = f" ({self.place})" if self.place is not None else ""
        return f"{self.message}{place}" + (f"; {self.hint}" if self.hint else "")

    @property
    def notes(self) -> Sequence[str]:
        """Return the text that a traceback shows below the message."""
        lines = [str(self.place)] if self.place is not None else []
        lines += [f"hint: {self.hint}"] if self.hint else []
        return (*lines, f"[{self.code}]: `windlass explain {self.code}`")

    def __str__(self) -> str:
        lines = [f"error: {self.message}".ljust(60) + f"  [{self.code}]"]
        if self.place is not None:
            lines.append(f"  {self.place}")
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class WindlassError(Exception):
    """Error that a user can act on; printed without a traceback."""

    exit_code: ClassVar[int] = 1
    default_code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", code: str = "", place: SourcePlace | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code or self.default_code
        self.place = place
        self._show_in_tracebacks()

    def _show_in_tracebacks(self) -> None:
        """Attach place, hint and code as notes (PEP 678), which Python 3.11 and notebooks print below the message."""
        if not hasattr(self, "add_note"):
            return
        for problem in self.problems:
            for note in problem.notes:
                self.add_note(note)

    @property
    def problems(self) -> Sequence[Problem]:
        """Return all problems in this error; only a `SpecError` has more than one."""
        return (Problem(self.message, self.code, self.place, self.hint),)

    def render(self) -> str:
        """Return the text for a terminal, without colour."""
        return "\n".join(str(problem) for problem in self.problems)


class UsageError(WindlassError):
    """Invalid command line."""

    exit_code = 2
    default_code = "usage"


class SpecError(WindlassError):
    """Invalid experiment; contains all problems, not only the first."""

    exit_code = 3
    default_code = "spec-refused"

    def __init__(self, problems: Iterable[Problem]) -> None:
        self._problems = tuple(problems)
        first = self._problems[0] if self._problems else Problem("the experiment is refused", self.default_code)
        super().__init__(first.message, hint=first.hint, code=first.code, place=first.place)

    def _show_in_tracebacks(self) -> None:
        """Attach only the codes as notes, since the text already has every problem with its place and hint."""
        if hasattr(self, "add_note"):
            for code in dict.fromkeys(problem.code for problem in self.problems):
                self.add_note(f"[{code}]: `windlass explain {code}`")

    def __str__(self) -> str:
        return "\n".join(problem.sentence for problem in self.problems)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._problems,)

    @property
    def problems(self) -> Sequence[Problem]:
        return self._problems or super().problems


class NotFoundError(WindlassError):
    """Missing run, task, file or secret."""

    exit_code = 4
    default_code = "not-found"


class AccessError(WindlassError):
    """Access denied, or a missing secret."""

    exit_code = 5
    default_code = "not-allowed"


class UnreachableError(WindlassError):
    """Site or service that cannot be reached."""

    exit_code = 6
    default_code = "unreachable"


class WaitTimeoutError(WindlassError):
    """Timeout while waiting for something that is still running."""

    exit_code = 7
    default_code = "timed-out"


class PreconditionError(WindlassError):
    """Failed precondition, such as a dirty tree or a full disk."""

    exit_code = 8
    default_code = "precondition"


class InternalError(WindlassError):
    """Bug in windlass."""

    exit_code = 70
    default_code = "internal"
