"""Names: validation, search for the nearest valid name, and new ids."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

__all__ = ["NAME_RULE", "as_name", "is_name", "is_run_id", "nearest", "new_run_id", "new_token"]

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?\Z")
_ID_TAIL = 9
NAME_RULE = "small letters, digits, '-', '_' and '.', at most 64, beginning and ending with a letter or digit"


def is_name(text: str) -> bool:
    """Return whether `text` is a valid name for an experiment, task or secret file.

    Such a name is safe as a file name.
    """
    return _NAME.match(text) is not None


def as_name(text: str, *, longest: int = 50) -> str:
    """Return the valid name most similar to a string, such as `my-run` for `My Run`; empty if there is none."""
    found = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:longest].strip("-._")
    return found if is_name(found) else ""


def is_run_id(text: str) -> bool:
    """Return whether `text` has the form of a run id: a name, a dash and eight letters."""
    return (
        len(text) > _ID_TAIL and text[-_ID_TAIL] == "-" and is_name(text[:-_ID_TAIL]) and is_name(text[1 - _ID_TAIL :])
    )


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return the candidate most similar to `word`; empty if none is similar."""
    import difflib  # lazy: only needed after a typo

    found = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return found[0] if found else ""


def new_run_id(experiment: str) -> str:
    """Return a new run id: the experiment's name and eight random letters."""
    return experiment + "-" + "".join(_CROCKFORD[byte % 32] for byte in os.urandom(8))


def new_token() -> str:
    """Return 128 random bits in hex, to identify a submission and its processes."""
    return os.urandom(16).hex()
