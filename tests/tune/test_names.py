"""The names of windlass.tune: each is where the table says, and type checkers see the same."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from windlass import tune
from windlass.tune.tuner.choices import make_executor

PACKAGES = [
    importlib.import_module(f"windlass.{name}")
    for name in ("tune", "tune.results", "tune.schedulers", "tune.search", "tune.search.bohb", "tune.search.optuna")
]


def lazy_part(package: ModuleType) -> ast.If:
    """The `if TYPE_CHECKING` of a package."""
    assert package.__file__ is not None
    body = ast.parse(Path(package.__file__).read_text()).body
    return next(node for node in body if isinstance(node, ast.If))


def imports(package: ModuleType) -> dict[str, tuple[str, str]]:
    """Names that type checkers see: name to its module and its name there."""
    nodes = [node for node in lazy_part(package).body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: (str(node.module), alias.name) for node in nodes for alias in node.names}


def table(package: ModuleType) -> dict[str, tuple[str, str]]:
    """Names that the interpreter finds, in the same form."""
    call = next(node for node in ast.walk(lazy_part(package)) if isinstance(node, ast.Dict))
    found = {}
    for key, value in zip(call.keys, call.values, strict=True):
        home = key.value if isinstance(key, ast.Constant) else package.__name__
        for text in ast.literal_eval(value):
            name, _, alias = text.partition(" as ")
            found[alias or name] = (str(home), name)
    return found


def test_type_checkers_and_the_interpreter_see_the_same_names() -> None:
    for package in PACKAGES:
        names = imports(package)
        assert table(package) == names, package.__name__
        for name, (module, own) in names.items():
            home = importlib.import_module(f"{module}.{own}" if module == package.__name__ else module)
            expected = home if module == package.__name__ else getattr(home, own)
            assert getattr(package, name) is expected, f"{package.__name__}.{name}"
        values = {name for name, (module, _) in names.items() if module != package.__name__}
        assert values <= set(package.__all__), package.__name__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'windlass.tune' has no attribute 'Tunr'"):
        tune.Tunr  # type: ignore[attr-defined] # noqa: B018


def test_the_executor_is_ray_only_where_ray_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, need: Callable[[str], None]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert make_executor(None).name == "local"
    assert make_executor("in-process").name == "in-process"
    need("ray")
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert make_executor(None).name == "ray"
