"""Verifiers by name, by entry point, or from your own code."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from windlass.core.errors import NotFoundError
from windlass.core.names import nearest
from windlass.post.rewards.protocol import Answer, Score
from windlass.post.rewards.text import exact, f1, gsm8k
from windlass.train.reference import load_reference

__all__ = ["ENTRY_POINTS", "FunctionVerifier", "find_verifier"]

ENTRY_POINTS = "windlass.verifiers"
"""Group of entry points: each names a function from an answer and the ground truth to a number."""

Function = Callable[[Answer, object], float]

_SHIPPED: Mapping[str, Function] = {"exact": exact, "f1": f1, "gsm8k": gsm8k}


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionVerifier:
    """A verifier made of a function; its version is a digest of the function's source code."""

    name: str
    function: Function

    @property
    def version(self) -> str:
        """Digest of the function's source code."""
        return hashlib.sha256(inspect.getsource(inspect.unwrap(self.function)).encode()).hexdigest()[:16]

    def score(self, answer: Answer, ground_truth: object) -> Score:
        """Call the function; an exception or a value that is not finite means that the answer could not be scored."""
        try:
            value = float(self.function(answer, ground_truth))
        except Exception as error:  # noqa: BLE001  (the user's code; its error is counted and shown)
            return Score(value=None, error=f"{type(error).__name__}: {error}")
        if not abs(value) < float("inf"):
            return Score(value=None, error=f"the reward is {value}")
        return Score(value=value)


def find_verifier(name: str) -> FunctionVerifier:
    """Return a verifier: a shipped one, an entry point's, or your own function by `module:function`.

    Raises:
        NotFoundError: there is none of this name.
    """
    if name in _SHIPPED:
        return FunctionVerifier(name=name, function=_SHIPPED[name])
    if ":" in name:
        found = load_reference(name)
        if callable(found):
            return FunctionVerifier(name=name, function=found)
    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name in others:
        return FunctionVerifier(name=name, function=others[name].load())
    known = [*_SHIPPED, *others]
    close = nearest(name, known)
    hint = f"did you mean `{close}`?" if close else f"verifiers: {', '.join(known)}; or `module:function`"
    raise NotFoundError(f"unknown verifier `{name}`", hint=hint, code="unknown-name")
