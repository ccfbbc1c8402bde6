from __future__ import annotations

import os
from pathlib import Path

from windlass.core.files import disk_bytes
from windlass.core.tree import remove_tree, walk
from windlass.record.manifest import commit_manifest, read_manifest
from windlass.runs.archive.contents import items_below

LEVELS = 1500


def deep_folder(root: Path) -> None:
    """A file 1,500 folders below `root`."""
    here = os.getcwd()
    root.mkdir()
    try:
        os.chdir(root)
        for _ in range(LEVELS):
            os.mkdir("d")
            os.chdir("d")
        Path("file").write_text("x")
    finally:
        os.chdir(here)


def test_walking_is_as_the_standard_library_does_it(tmp_path: Path) -> None:
    for name in ("a/b/c", "a/d", "e"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("x")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "nowhere").symlink_to("missing")

    def sort(found: object) -> list[tuple[str, list[str], list[str]]]:
        return sorted((str(folder), sorted(folders), sorted(names)) for folder, folders, names in found)  # type: ignore[attr-defined]

    assert sort(walk(tmp_path)) == sort(os.walk(tmp_path))
    errors: list[OSError] = []
    assert list(walk(tmp_path / "none", onerror=errors.append)) == []
    assert [type(error) for error in errors] == [FileNotFoundError]


def test_a_folder_of_1500_levels_is_measured_recorded_and_removed(tmp_path: Path) -> None:
    root = tmp_path / "out"
    deep_folder(root)
    assert disk_bytes(root) > 0
    left_out: dict[str, str] = {}
    assert list(items_below(root, "run/out", left_out)) == []
    assert list(left_out.values()) == ["more than 200 levels deep"]
    assert commit_manifest(root, is_beside=True).num_bytes == 1
    assert len(read_manifest(root, is_beside=True).entries) == 1
    remove_tree(root)
    assert not root.exists()
