"""A package that imports its parts when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from windlass.core.lazy import lazy_names


def test_a_name_is_imported_when_first_asked_for() -> None:
    get = lazy_names("windlass.core", {"windlass.core.units": ("parse_size",)})
    from windlass.core.units import parse_size

    assert get("parse_size") is parse_size


def test_a_name_may_stand_for_another_one_and_for_a_submodule() -> None:
    get = lazy_names("windlass.core", {"windlass.core": ("units",), "windlass.core.units": ("parse_size as size",)})
    from windlass.core import units

    assert get("size") is units.parse_size
    assert get("units") is units
    with pytest.raises(AttributeError):
        get("parse_size")


def test_an_unknown_name_is_an_attribute_error() -> None:
    get = lazy_names("windlass.core", {"windlass.core.units": ("parse_size",)})
    with pytest.raises(AttributeError, match=r"module 'windlass\.core' has no attribute 'parse_sizes'"):
        get("parse_sizes")


@pytest.mark.parametrize(
    ("package", "stranger"),
    [
        ("windlass.pin", "windlass.pin.environment.building"),
        ("windlass.secrets", "windlass.secrets.vault"),
        ("windlass.config", "windlass.config.emit"),
        ("windlass.launcher", "windlass.launcher.reconcile.reconciler"),
        ("windlass.supervise.main", "subprocess"),
        ("windlass.supervise.replica.loop", "hashlib"),
    ],
)
def test_what_a_start_does_not_need_is_not_imported(package: str, stranger: str) -> None:
    program = f"import sys, {package}; sys.exit({stranger!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-c", program]).returncode == 0
