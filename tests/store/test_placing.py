from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.core.errors import PreconditionError
from windlass.pin.data.pinning import pin_data
from windlass.store.local import LocalStore
from windlass.store.placing import check_placed, place, remove_placed, sweep_placed


def test_a_placed_tree_is_the_data_read_only_and_linked(store: LocalStore, data: Path, tmp_path: Path) -> None:
    version = store.add(data)
    path = place(store, version, tmp_path / "placed")
    assert pin_data("d", f"file:{path}", tmp_path).digest == version.digest
    assert (path / "a.txt").stat().st_mode & 0o777 == 0o444
    assert (path / "sub/run").stat().st_mode & 0o777 == 0o555
    assert (path / "a.txt").samefile(store.open_object(version.entries[0]))
    assert place(store, version, tmp_path / "placed") == path
    assert check_placed(path, version, is_thorough=True) == []
    assert sorted(os.listdir(path.parent)) == [".data.lock", ".data.placed.json", "data"]


def test_a_single_file_keeps_its_name(store: LocalStore, data: Path, tmp_path: Path) -> None:
    path = place(store, store.add(data / "sub/run"), tmp_path / "placed", name="other.sh")
    assert (path.name, path.read_text(), os.access(path, os.X_OK)) == ("other.sh", "beta", True)


def test_a_tree_that_was_changed_is_placed_anew(store: LocalStore, data: Path, tmp_path: Path) -> None:
    version = store.add(data)
    path = place(store, version, tmp_path / "placed")
    (path / "a.txt").unlink()
    assert check_placed(path, version) == ["a.txt is missing"]
    assert (place(store, version, tmp_path / "placed") / "a.txt").read_text() == "alpha"


def test_bytes_changed_through_a_link_are_noticed_and_not_given_to_others(
    store: LocalStore, data: Path, tmp_path: Path
) -> None:
    version = store.add(data)
    path = place(store, version, tmp_path / "placed")
    os.chmod(path / "a.txt", 0o644)
    (path / "a.txt").write_text("ALPHA")
    assert check_placed(path, version) == ["a.txt changed"]
    with pytest.raises(PreconditionError, match=r"the bytes of `a\.txt`"):
        place(store, version, tmp_path / "elsewhere")
    assert not list((tmp_path / "elsewhere").rglob("a.txt"))
    store.add(data)
    assert (place(store, version, tmp_path / "placed") / "a.txt").read_text() == "alpha"


def test_a_crash_between_rename_and_record_is_finished(store: LocalStore, data: Path, tmp_path: Path) -> None:
    version = store.add(data)
    path = place(store, version, tmp_path / "placed")
    path.with_name(".data.placed.json").unlink()
    assert place(store, version, tmp_path / "placed") == path
    assert check_placed(path, version) == []


def test_where_links_cannot_be_made_files_are_copied(
    store: LocalStore, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = store.add(data)

    def refuse(source: object, target: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("windlass.store.objects.os.link", refuse)
    path = place(store, version, tmp_path / "placed")
    assert (path / "sub/b.txt").read_text() == "beta"
    assert (path / "sub/b.txt").stat().st_nlink == 1
    assert (path / "sub/run").stat().st_mode & 0o777 == 0o555


def test_a_placed_tree_goes_and_the_bytes_stay(store: LocalStore, data: Path, tmp_path: Path) -> None:
    version = store.add(data)
    path = place(store, version, tmp_path / "placed")
    remove_placed(path)
    assert os.listdir(path.parent) == [".data.lock"]
    store.verify(version.entries[0])


def test_only_what_is_needed_stays_placed(store: LocalStore, data: Path, tmp_path: Path) -> None:
    folder, whole = tmp_path / "placed", store.add(data)
    single = store.add(data / "a.txt")
    kept, gone = place(store, whole, folder), place(store, single, folder)
    sweep_placed(folder, lambda: {whole.digest})
    assert kept.exists()
    assert check_placed(kept, whole) == []
    assert not gone.parent.exists()
    sweep_placed(folder, set)
    assert os.listdir(folder) == []
    sweep_placed(tmp_path / "never made", set)
