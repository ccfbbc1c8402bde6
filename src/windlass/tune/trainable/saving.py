"""Return values of `save_checkpoint` as files in its folder, and back: a dict, the folder, or a path in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.core.errors import UsageError
from windlass.core.json_text import decode_json
from windlass.tune.errors import BadValueError

if TYPE_CHECKING:
    from windlass.tune.trainable.class_api import Trainable

__all__ = ["load_state", "save_state"]

_FACTS = ".windlass.json"
_STATE = "state.json"
_PICKLE = "state.pickle"
_COUNTS = {
    "iteration": "_iteration",
    "time_total_s": "_time_total",
    "timesteps_total": "_timesteps_total",
    "episodes_total": "_episodes_total",
}


def save_state(trainable: Trainable, folder: str) -> None:
    """Save a trainable to a folder.

    A dict that JSON represents exactly is written as JSON; any other is pickled.

    Raises:
        UsageError: `save_checkpoint` returned neither a dict nor a path in the folder nor None.
    """
    returned = trainable.save_checkpoint(folder)
    facts: dict[str, Any] = {name: getattr(trainable, attribute) for name, attribute in _COUNTS.items()}
    if isinstance(returned, dict):
        facts["state"] = _write_state(returned, folder)
    elif isinstance(returned, str | os.PathLike):
        facts["path"] = _relative(str(returned), folder, trainable)
    elif returned is not None:
        raise _refusal(trainable, returned)
    Path(folder, _FACTS).write_text(json.dumps(facts))


def _write_state(state: dict[str, Any], folder: str) -> str:
    if _is_exact(state):
        Path(folder, _STATE).write_text(json.dumps(state))
        return _STATE
    import pickle  # lazy: most states are JSON or files

    with Path(folder, _PICKLE).open("wb") as file:
        pickle.dump(state, file, protocol=pickle.HIGHEST_PROTOCOL)
    return _PICKLE


def _is_exact(value: object) -> bool:
    """Return whether JSON represents a value exactly."""
    if type(value) is dict:
        return all(type(key) is str and _is_exact(inner) for key, inner in value.items())
    if type(value) is list:
        return all(_is_exact(inner) for inner in value)
    return type(value) in (str, int, float, bool, type(None))


def _relative(returned: str, folder: str, trainable: Trainable) -> str:
    relative = os.path.relpath(os.path.join(folder, returned), folder)
    if relative == os.pardir or relative.startswith(os.pardir + os.sep):
        raise _refusal(trainable, returned)
    return relative


def _refusal(trainable: Trainable, returned: object) -> UsageError:
    return BadValueError(
        f"{type(trainable).__name__}.save_checkpoint returned {returned!r:.100}",
        hint="return a dict, or write files into checkpoint_dir and return None",
        code="invalid-value",
    )


def load_state(trainable: Trainable, folder: str) -> None:
    """Load the state of `save_state`, or any folder of files, into a trainable; its counts are restored too."""
    facts: dict[str, Any] = {}
    if os.path.exists(os.path.join(folder, _FACTS)):
        facts = decode_json(Path(folder, _FACTS).read_bytes())
    for name, attribute in _COUNTS.items():
        if name in facts:
            setattr(trainable, attribute, facts[name])
    trainable._iterations_since_restore, trainable._time_since_restore = 0, 0.0
    trainable.load_checkpoint(_content(facts, folder))


def _content(facts: dict[str, Any], folder: str) -> object:
    state = facts.get("state")
    if state == _STATE:
        return decode_json(Path(folder, _STATE).read_bytes())
    if state == _PICKLE:
        import pickle  # lazy: see above

        with Path(folder, _PICKLE).open("rb") as file:
            return pickle.load(file)  # noqa: S301 - the trial's own checkpoint, with verified checksums
    return os.path.normpath(os.path.join(folder, facts.get("path", ".")))
