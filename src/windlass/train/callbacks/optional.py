"""Import of optional packages on first use."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from windlass.core.errors import PreconditionError

__all__ = ["ensure_there", "is_there", "require"]


def is_there(name: str) -> bool:
    """Return whether a package can be imported."""
    return find_spec(name) is not None


def ensure_there(name: str, package: str, user: str) -> None:
    """Raise if a package is missing, without importing it.

    For processes that do not use the package themselves.

    Raises:
        PreconditionError: it is not installed.
    """
    if not is_there(name):
        raise _missing(package, user)


def require(name: str, package: str, user: str) -> ModuleType:
    """Import an optional module, or raise if its package is missing.

    Args:
        package: its name for `pip install`.
        user: the feature that needs it, for the error.

    Raises:
        PreconditionError: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise _missing(package, user) from error


def _missing(package: str, user: str) -> PreconditionError:
    message = f"{user} need the package {package}, which is not installed"
    return PreconditionError(message, hint=f"pip install {package}", code="extra-missing")
