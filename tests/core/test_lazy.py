from __future__ import annotations

import sys
from pathlib import Path

import pytest

from windlass.core.lazy import lazy_names


def test_a_name_is_imported_when_asked_for_and_then_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lazy_sample"
    package.mkdir()
    homes = '{"lazy_sample.inner": ("VALUE",)}'
    text = f"from windlass.core.lazy import lazy_names\n__getattr__ = lazy_names(__name__, {homes})\n"
    (package / "__init__.py").write_text(text)
    (package / "inner.py").write_text("VALUE = object()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sample = __import__("lazy_sample")
    try:
        assert "lazy_sample.inner" not in sys.modules
        value = sample.VALUE
        assert vars(sample)["VALUE"] is value
        assert sys.modules["lazy_sample.inner"].VALUE is value
    finally:
        for name in ("lazy_sample", "lazy_sample.inner"):
            sys.modules.pop(name, None)


def test_other_names_are_not_there() -> None:
    look = lazy_names("windlass.sample", {"json": ("dumps",)})
    with pytest.raises(AttributeError, match=r"module 'windlass\.sample' has no attribute 'dump'"):
        look("dump")
