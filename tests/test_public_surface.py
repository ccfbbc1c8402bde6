"""A name becomes public, or stops being so, only on purpose: `python -m scripts.public_surface --write`."""

from __future__ import annotations

import difflib
import importlib
import inspect

import pytest

from scripts.public_surface import SOURCE, SURFACE, surface, unlisted

NAMES = surface().splitlines()


def test_the_surface_is_the_recorded_one() -> None:
    recorded = SURFACE.read_text().splitlines()
    changes = list(difflib.unified_diff(recorded, NAMES, "recorded", "now", n=0, lineterm=""))
    assert changes == [], "\n".join([*changes, "meant? python -m scripts.public_surface --write"])


@pytest.mark.parametrize("package", sorted({name.rpartition(".")[0] for name in NAMES}))
def test_public_names_exist_and_say_what_they_are(package: str) -> None:
    module = importlib.import_module(package)
    names = [name.rpartition(".")[2] for name in NAMES if name.rpartition(".")[0] == package]
    assert [name for name in names if not hasattr(module, name)] == []
    objects = {name: getattr(module, name) for name in names}
    things = {name: thing for name, thing in objects.items() if inspect.isclass(thing) or inspect.isfunction(thing)}
    assert [name for name, thing in things.items() if not inspect.getdoc(thing)] == []


@pytest.mark.parametrize("package", sorted({name.rpartition(".")[0] for name in NAMES}))
def test_summaries_fit_a_line(package: str) -> None:
    module = importlib.import_module(package)
    assert inspect.getdoc(module), f"{package} has no docstring"


def test_a_package_holds_no_name_beside_its_public_ones() -> None:
    assert [name for init in sorted(SOURCE.rglob("__init__.py")) for name in unlisted(init)] == []
