"""What a sweep of an experiment file tunes: the experiment itself, or a class or function that slots import."""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

from windlass.core.errors import InternalError, NotFoundError, UsageError
from windlass.core.names import nearest
from windlass.tune.executors.local.template_process import IMPORT_LIMIT_S

__all__ = ["experiment", "find_trainable", "time_limit"]


class _TooLongError(BaseException):
    """Passes `except Exception` in the module that is imported."""


@contextlib.contextmanager
def time_limit(what: str, limit_s: float = IMPORT_LIMIT_S) -> Iterator[None]:
    """Ends an import that hangs; in the main thread, for elsewhere nothing can be interrupted.

    Raises:
        UsageError: it took longer (`trainable-not-importable`).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise _TooLongError("".join(traceback.format_stack(frame, 5)))

    before = signal.signal(signal.SIGALRM, end)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    except _TooLongError as late:
        raise UsageError(
            f"{what} is not imported after {limit_s:g} s; it was here:\n{str(late).rstrip()}",
            hint="what a trainable's module does when it is imported must end; move it into the function or `setup`",
            code="trainable-not-importable",
        ) from None
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def experiment(config: dict[str, Any]) -> None:
    """Stands for an experiment in the journal of a sweep whose trials are runs; is never called."""
    raise InternalError(f"a run of an experiment was called as a function, with {config}")


def find_trainable(name: str) -> Any:
    """The class or function of `MODULE:NAME`.

    Raises:
        NotFoundError: there is no such module or name (`trainable-not-found`).
        UsageError: it is neither a class nor a function, or its module is not imported in time.
    """
    module_name, _, path = name.partition(":")
    hint = "its folder must be the experiment's `code`, or it must be installed in its environment"
    try:
        with time_limit(f"the module `{module_name}`"):
            found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise NotFoundError(f"no module `{module_name}`: {error}", hint=hint, code="trainable-not-found") from error
    for part in path.split("."):
        if not hasattr(found, part):
            close = nearest(part, vars(found))
            hint = f"did you mean `{module_name}:{close}`?" if close else "write `MODULE:NAME`"
            raise NotFoundError(f"`{module_name}` has no `{part}`", hint=hint, code="trainable-not-found")
        found = getattr(found, part)
    if not callable(found):
        hint = "name a function of the configuration, or a subclass of tune.Trainable"
        raise UsageError(f"`{name}` is neither a class nor a function", hint=hint, code="invalid-trainable")
    return found
