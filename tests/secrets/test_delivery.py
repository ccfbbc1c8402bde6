"""Deliveries as the client makes and clears them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.core.errors import AccessError, InternalError
from windlass.core.names import new_token
from windlass.secrets import delivery as delivery_module
from windlass.secrets.delivery import deliver, sweep_deliveries
from windlass.supervise.remote.delivery import read_delivery

VALUES = {"HF_TOKEN": b"s3cr3t-value"}


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of our own: runtime folder, shared memory, no login manager."""
    for name in ("runtime", "shm"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(delivery_module, "_SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(delivery_module, "_LOGIND_USERS", tmp_path / "users")
    monkeypatch.setattr(delivery_module, "_LINGERING", tmp_path / "linger")
    monkeypatch.setattr(delivery_module, "_FIRST_LOGIN_UID", 0)
    return tmp_path


def test_private_file_in_the_runtime_folder(memory: Path) -> None:
    token = new_token()
    path = deliver(VALUES, token, memory / "home")
    assert path.parent.parent == memory / "runtime" / "windlass"
    assert path.name == f"{token}.json"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert read_delivery(path) == VALUES


def test_shared_memory_without_runtime_folder(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert deliver(VALUES, new_token(), memory / "home").parents[2] == memory / "shm"


def test_home_without_memory_folders(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(memory / "none"))
    monkeypatch.setattr(delivery_module, "_SHARED_MEMORY", memory / "none")
    assert deliver(VALUES, new_token(), memory / "home").parent == memory / "home" / "delivery"


def test_folder_of_somebody_else_is_not_used(memory: Path) -> None:
    (memory / "elsewhere").mkdir(mode=0o700)
    (memory / "runtime" / "windlass").symlink_to(memory / "elsewhere")
    folder = deliver(VALUES, new_token(), memory / "home").parent.parent
    assert folder.parent == memory / "shm"
    folder.chmod(0o755)
    assert deliver(VALUES, new_token(), memory / "home").parent == memory / "home" / "delivery"


def test_home_where_logging_out_empties_memory(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (memory / "users").mkdir()
    (memory / "users" / str(os.geteuid())).touch()
    assert deliver(VALUES, new_token(), memory / "home").parent == memory / "home" / "delivery"
    (memory / "linger").mkdir()
    (memory / "linger" / "someone").touch()
    monkeypatch.setenv("LOGNAME", "someone")
    assert deliver(VALUES, new_token(), memory / "home").parents[1] == memory / "runtime" / "windlass"


def test_folder_that_the_place_names(memory: Path) -> None:
    path = deliver(VALUES, new_token(), memory / "home", folder=memory / "shared" / "delivery")
    assert path.parent == memory / "shared" / "delivery"
    path.parent.chmod(0o750)
    with pytest.raises(AccessError, match="can be read by other users"):
        deliver(VALUES, new_token(), memory / "home", folder=memory / "shared" / "delivery")


def test_token_that_is_no_file_name(memory: Path) -> None:
    with pytest.raises(InternalError, match="invalid delivery token"):
        deliver(VALUES, "../../etc/cron", memory / "home")


def write_stranger(path: Path) -> Path:
    path.touch()
    return path


def test_sweep_leaves_the_living(memory: Path) -> None:
    live, dead, at_home = new_token(), new_token(), new_token()
    kept = deliver(VALUES, live, memory / "home")
    gone = deliver(VALUES, dead, memory / "home")
    leftover = gone.with_name(f".{dead}.json.12.ab.tmp")
    leftover.touch()
    gone_too = deliver(VALUES, at_home, memory / "home", folder=memory / "home" / "delivery")
    stranger = write_stranger(kept.with_name("notes.txt"))
    other_home = deliver(VALUES, new_token(), memory / "other-home")
    assert sweep_deliveries(lambda token: token == live, memory / "home") == sorted([dead, at_home])
    assert stranger.exists()
    assert other_home.exists()
    assert [path for path in (kept, gone, gone_too, leftover) if path.exists()] == [kept]
    assert sweep_deliveries(lambda token: token == live, memory / "home") == []
