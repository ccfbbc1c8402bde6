"""Verifiers by name, by entry point, or from your own code."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points

from windlass.core.errors import NotFoundError, UsageError
from windlass.core.names import nearest
from windlass.post.rewards.code import code
from windlass.post.rewards.ifeval import ifeval
from windlass.post.rewards.judge import judge, load_judge
from windlass.post.rewards.maths import load_math, math
from windlass.post.rewards.protocol import Answer, Isolation, Score
from windlass.post.rewards.text import exact, f1, format_match, gsm8k, length
from windlass.train.reference import code_digest, load_reference

__all__ = ["ENTRY_POINTS", "FunctionVerifier", "find_verifier"]

ENTRY_POINTS = "windlass.verifiers"
"""Group of entry points: each names a function from an answer and the ground truth to a number."""

Function = Callable[..., float | Score]
"""A function of the answer and the ground truth; its settings are keyword arguments."""

_SHIPPED: Mapping[str, tuple[Function, Isolation]] = {
    "code": (code, "sandbox"),
    "exact": (exact, "inline"),
    "f1": (f1, "inline"),
    "format": (format_match, "process"),
    "gsm8k": (gsm8k, "inline"),
    "ifeval": (ifeval, "process"),
    "judge": (judge, "process"),
    "math": (math, "process"),
    "length": (length, "inline"),
}
"""Verifiers whose time is bounded run inline; a regex of the user's may take exponential time, those of ifeval a square."""


_LOADERS: Mapping[str, Callable[[Mapping[str, object]], None]] = {
    "judge": load_judge,
    "math": lambda settings: load_math(),
}
"""Functions that load what a verifier needs, once, before answers are scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionVerifier:
    """A verifier made of a function; its version is a digest of the code behind it and its settings."""

    name: str
    function: Function
    isolation: Isolation = "process"
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Digest of the function's file, of the files beside it that it imports, and of the settings."""
        digest = hashlib.sha256(code_digest(self.function).encode())
        if self.settings:
            digest.update(json.dumps(self.settings, sort_keys=True).encode())
        return digest.hexdigest()[:16]

    def weakened(self) -> FunctionVerifier:
        """Return this verifier so that it runs on any machine, with as much of the sandbox as that gives."""
        return replace(self, settings={**self.settings, "weak": True}) if self.isolation == "sandbox" else self

    def load(self) -> None:
        """Load what the function needs, before the first answer.

        Raises:
            PreconditionError: a package is not installed (`extra-missing`).
        """
        if self.name in _LOADERS:
            _LOADERS[self.name](self.settings)

    def score(self, answer: Answer, ground_truth: object) -> Score:
        """Call the function; an exception or a value that is not finite means that the answer could not be scored."""
        try:
            found = self.function(answer, ground_truth, **self.settings)
            if isinstance(found, Score):
                return found
            value = float(found)
        except Exception as error:  # noqa: BLE001  (the user's code; its error is counted and shown)
            return Score(value=None, error=f"{type(error).__name__}: {error}", kind="exception")
        if not abs(value) < float("inf"):
            return Score(value=None, error=f"the reward is {value}", kind="not-finite")
        return Score(value=value)


def find_verifier(name: str, settings: Mapping[str, object] | None = None) -> FunctionVerifier:
    """Return a verifier: a shipped one, an entry point's, or your own function by `module:function`.

    Args:
        name: the verifier's name.
        settings: keyword arguments of its function.

    Raises:
        NotFoundError: there is none of this name.
        UsageError: the function has no such setting, or lacks one.
    """
    function, isolation = _find_function(name)
    found = FunctionVerifier(name=name, function=function, isolation=isolation, settings=dict(settings or {}))
    try:
        inspect.signature(function).bind(None, None, **found.settings)
    except TypeError as error:
        hint = f"its function is `{name}{inspect.signature(function)}`"
        raise UsageError(f"invalid settings of verifier `{name}`: {error}", hint=hint, code="invalid-value") from error
    return found


def _find_function(name: str) -> tuple[Function, Isolation]:
    if name in _SHIPPED:
        return _SHIPPED[name]
    if ":" in name:
        found = load_reference(name)
        if callable(found):
            return found, "process"
    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name in others:
        return others[name].load(), "process"
    known = [*_SHIPPED, *others]
    close = nearest(name, known)
    hint = f"did you mean `{close}`?" if close else f"verifiers: {', '.join(known)}; or `module:function`"
    raise NotFoundError(f"unknown verifier `{name}`", hint=hint, code="unknown-name")
