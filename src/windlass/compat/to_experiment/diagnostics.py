"""Notes on a conversion to an experiment, and problems in it; all problems are raised together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from windlass.core.dataclass import dataclass
from windlass.core.errors import Problem, SpecError
from windlass.spec.experiment import Experiment
from windlass.spec.load import checked

__all__ = ["ConversionDiagnostics", "ConvertedExperiment", "with_options"]

_OVERRIDE = re.compile(r"~?\btasks\.main\.(?P<key>[a-z_]+)(?:=(?P<value>[^\s`]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedExperiment:
    """Experiment converted from a launch, with notes for the user, one sentence each."""

    experiment: Experiment
    notes: tuple[str, ...]


def with_options(error: SpecError, options: Mapping[str, str], *, other: str = "") -> SpecError:
    """Return the error with hints that suit another launcher's command line.

    Args:
        options: the launcher's option for each key of a task, such as `--num_nodes` for `nodes`.
        other: option for any other key of an experiment, such as `--set`; empty if there is none.
    """

    def typed(match: re.Match[str]) -> str:
        option = options.get(match["key"])
        if option:
            return f"{option} {match['value']}"
        return f"{other} {match.group()}" if other else match.group()

    return SpecError(replace(each, hint=_OVERRIDE.sub(typed, each.hint)) for each in error.problems)


@dataclass(slots=True)
class ConversionDiagnostics:
    """Collector of notes and problems, in the order in which they are added.

    Attributes:
        code: error code of the problems that `refuse` adds.
    """

    code: str
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def note(self, *notes: str) -> None:
        """Add a note for the user."""
        self.notes += notes

    def refuse(self, message: str, hint: str) -> None:
        """Add a problem that prevents the conversion."""
        self.problems.append(Problem(message, self.code, hint=hint))

    def check(self) -> None:
        """Raise SpecError with all problems, without duplicates."""
        if self.problems:
            raise SpecError(dict.fromkeys(self.problems))

    def converted(self, experiment: Experiment) -> ConvertedExperiment:
        """Return the checked experiment with the notes, without duplicates; raises SpecError."""
        return ConvertedExperiment(experiment=checked(experiment), notes=tuple(dict.fromkeys(self.notes)))

    def add(self, problems: Iterable[Problem]) -> None:
        """Add problems that another check found."""
        self.problems += problems
