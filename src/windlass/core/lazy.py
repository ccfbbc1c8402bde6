"""Lazy packages, whose modules are imported when one of their names is first used (PEP 562).

For packages of which a launch needs only a part. The names are listed twice: for type checkers and for the interpreter.

    if TYPE_CHECKING:
        from windlass.train.data.tokenizer import Tokenizer, load_tokenizer
    else:
        __getattr__ = lazy_names(__name__, {"windlass.train.data.tokenizer": ("Tokenizer", "load_tokenizer")})

A name must not be that of a submodule, unless it means the submodule: importing the submodule would replace the name.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Callable

__all__ = ["lazy_names"]


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return a package's `__getattr__`, which imports a name's module and stores the value in the package.

    Args:
        homes: module -> names in it, `name as other` for one that has another name here; `package` itself -> its
            lazily imported submodules.
    """
    names = ((module, *text.partition(" as ")[::2]) for module, texts in homes.items() for text in texts)
    modules = {alias or name: (module, name) for module, name, alias in names}

    def __getattr__(name: str) -> object:  # noqa: N807 - what PEP 562 calls it
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, own = modules[name]
        if module == package:
            module, own = f"{package}.{name}", ""
        try:
            __import__(module)
        except ModuleNotFoundError as error:
            _add_hint(error)
            raise
        value = getattr(sys.modules[module], own) if own else sys.modules[module]
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__


def _add_hint(error: ModuleNotFoundError) -> None:
    """Add a note with the extra that installs a missing package, if this Python supports notes."""
    from windlass.core.extras import missing_extra  # lazy: only if a package is missing

    extra = missing_extra(error)
    if extra and hasattr(error, "add_note"):
        error.add_note(f"hint: pip install 'windlass[{extra}]'")
