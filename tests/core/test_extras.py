"""Packages that are imported on first use, and may be missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from windlass.core.errors import PreconditionError
from windlass.core.extras import ensure_installed, is_installed, require

MESSAGE = "callbacks of kind `x` need the package no-such, which is not installed"


def test_a_package_that_is_missing_is_named() -> None:
    for name in ("windlass_no_such_package", "windlass_no_such_package.part"):
        with pytest.raises(PreconditionError) as caught:
            require(name, MESSAGE, hint="pip install no-such")
        assert (caught.value.message, caught.value.hint) == (MESSAGE, "pip install no-such")
        assert caught.value.code == "extra-missing"
    with pytest.raises(PreconditionError) as caught:
        ensure_installed("windlass_no_such_package", MESSAGE, hint="pip install no-such")
    assert (caught.value.message, caught.value.hint) == (MESSAGE, "pip install no-such")


def test_a_package_that_is_there_is_imported_only_by_require(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "windlass_some_package.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert is_installed("windlass_some_package")
    ensure_installed("windlass_some_package", MESSAGE, hint="")
    assert require("json", MESSAGE, hint="") is json


def test_a_package_that_lacks_another_one_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "windlass_broken_package.py").write_text("import windlass_no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError) as caught:
        require("windlass_broken_package", MESSAGE, hint="")
    assert caught.value.name == "windlass_no_such_package"
    assert "windlass_broken_package" not in sys.modules
