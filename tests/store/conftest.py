from __future__ import annotations

from pathlib import Path

import pytest

from windlass.store.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("alpha")
    (folder / "sub/b.txt").write_text("beta")
    (folder / "sub/same").write_text("beta")
    (folder / "sub/run").write_text("beta")
    (folder / "sub/run").chmod(0o755)
    (folder / "sub/back").symlink_to("../a.txt")
    return folder
