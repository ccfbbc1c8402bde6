from __future__ import annotations

from pathlib import Path

from windlass.launcher.beaker.storage import Storage, storage_of
from windlass.sites.profile import FileSystem, Profile


def profile(shared: str, ssh: str = "") -> Profile:
    return Profile(name="lab", kind="beaker", fs=FileSystem(shared=shared), ssh=ssh)


def test_storage_is_here_where_the_home_is_on_it(tmp_path: Path) -> None:
    assert storage_of(profile(str(tmp_path)), tmp_path / "windlass") is Storage.LOCAL
    (tmp_path / "link").symlink_to(tmp_path)
    assert storage_of(profile(str(tmp_path / "link")), tmp_path / "windlass") is Storage.LOCAL


def test_storage_behind_a_host_is_reached_through_it(tmp_path: Path) -> None:
    assert storage_of(profile(str(tmp_path), "me@host"), tmp_path / "windlass") is Storage.SSH


def test_storage_that_nobody_sees_needs_a_courier(tmp_path: Path) -> None:
    assert storage_of(profile("/weka/main"), tmp_path / "windlass") is Storage.DATASETS
    assert storage_of(profile(""), tmp_path / "windlass") is Storage.DATASETS
