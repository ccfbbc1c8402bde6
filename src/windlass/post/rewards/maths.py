"""Verifier of mathematical answers by the package math-verify, which parses LaTeX and may take very long."""

from __future__ import annotations

import logging
from typing import Any

from windlass.core.extras import require
from windlass.post.rewards.protocol import Answer

__all__ = ["load_math", "math"]


def load_math() -> None:
    """Import and warm up the package; takes seconds, so a pool does this once, before it starts workers.

    Raises:
        PreconditionError: math-verify is not installed (`extra-missing`).
    """
    package = _package()
    logging.getLogger("math_verify").setLevel(
        logging.ERROR
    )  # it warns that the caller must bound the time, which we do
    package.verify(
        *[package.parse(text, parsing_timeout=None) for text in ("$\\frac{1}{2}$", "0.5")], timeout_seconds=None
    )


def math(answer: Answer, ground_truth: object) -> float:
    """Return 1 if the answer's last expression equals the ground truth's, else 0.

    Runs in a process of the pool, whose deadline replaces the package's own: those need the main thread's signals.

    Raises:
        PreconditionError: math-verify is not installed (`extra-missing`).
        ValueError: the ground truth holds no expression.
    """
    package = _package()
    wanted = package.parse(f"${ground_truth}$", parsing_timeout=None, raise_on_error=True)
    if not wanted:
        raise ValueError(f"the ground truth {str(ground_truth)[:80]!r} has no expression")
    found = package.parse(answer.text, parsing_timeout=None)
    return float(package.verify(wanted, found, timeout_seconds=None))


def _package() -> Any:
    return require("math_verify", "verifier `math` needs math-verify", hint="`pip install 'windlass[post]'`")
