"""Notes and problems of a launch that becomes an experiment; problems are raised all at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from windlass.core.dataclass import dataclass
from windlass.core.errors import Problem, SpecError
from windlass.spec import Experiment, checked

__all__ = ["ConversionDiagnostics", "ConvertedExperiment", "with_options"]

_OVERRIDE = re.compile(r"~?\btasks\.main\.(?P<key>[a-z_]+)(?:=(?P<value>[^\s`]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedExperiment:
    """The experiment that a launch became, and what a user should be told, a sentence each."""

    experiment: Experiment
    notes: tuple[str, ...]


def with_options(error: SpecError, options: Mapping[str, str], *, other: str = "") -> SpecError:
    """The same problems, with hints that can be typed on another launcher's command line.

    Args:
        options: the launcher's own option by a task's key, such as `--num_nodes` for `nodes`.
        other: the option that takes any other key of an experiment, such as `--set`; empty: there is none.
    """

    def typed(match: re.Match[str]) -> str:
        option = options.get(match["key"])
        if option:
            return f"{option} {match['value']}"
        return f"{other} {match.group()}" if other else match.group()

    return SpecError(replace(each, hint=_OVERRIDE.sub(typed, each.hint)) for each in error.problems)


@dataclass(slots=True)
class ConversionDiagnostics:
    """Notes and problems in the order they came up.

    Attributes:
        code: of the problems that `refuse` makes.
    """

    code: str
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def note(self, *notes: str) -> None:
        """Keep something that a user should be told."""
        self.notes += notes

    def refuse(self, message: str, hint: str) -> None:
        """Keep a reason why the launch cannot be brought there."""
        self.problems.append(Problem(message, self.code, hint=hint))

    def check(self) -> None:
        """Raises SpecError with every problem, each once."""
        if self.problems:
            raise SpecError(dict.fromkeys(self.problems))

    def converted(self, experiment: Experiment) -> ConvertedExperiment:
        """The experiment, checked, with the notes, each once; raises SpecError."""
        return ConvertedExperiment(experiment=checked(experiment), notes=tuple(dict.fromkeys(self.notes)))

    def add(self, problems: Iterable[Problem]) -> None:
        """Keep problems that somebody else found."""
        self.problems += problems
