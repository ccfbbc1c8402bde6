from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.conftest import Job, leave
from tests.train.checkpoint.conftest import is_equal, save, state
from windlass.train.checkpoint.config import LoadConfig
from windlass.train.checkpoint.source import load_newest, resolve_load
from windlass.train.checkpoint.store import FolderStore
from windlass.train.errors import CheckpointError


def test_the_runs_own_come_first_the_newest_before_others(store: FolderStore) -> None:
    own = [save(store, step).path for step in (1, 2)]
    source = resolve_load(LoadConfig(path="/elsewhere", optim=False), store)
    assert source is not None
    assert (source.kind, source.paths, source.optim, source.trainer) == ("own", (own[1], own[0]), True, True)


def test_never_looks_nowhere(store: FolderStore) -> None:
    save(store, 1)
    assert resolve_load(LoadConfig(path="/elsewhere", strategy="never"), store) is None


def test_a_task_that_is_not_resumed_begins_anew(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 1)
    job = Job(tmp_path, monkeypatch)
    try:
        job.set(RESUME="0")
        assert resolve_load(LoadConfig(), store) is None
    finally:
        leave()


def test_nothing_there_begins_anew_unless_it_must_be(store: FolderStore, tmp_path: Path) -> None:
    assert resolve_load(LoadConfig(), store) is None
    assert resolve_load(LoadConfig(path=str(tmp_path / "none")), None) is None
    with pytest.raises(CheckpointError, match=f"no checkpoint in {store.path}"):
        resolve_load(LoadConfig(strategy="always"), store)
    with pytest.raises(CheckpointError, match=r"none \(`checkpoint\.load\.path`\)"):
        resolve_load(LoadConfig(path=str(tmp_path / "none"), strategy="always"), store)


def test_what_a_path_holds_is_told_apart(store: FolderStore, tmp_path: Path) -> None:
    paths = [save(store, step).path for step in (3, 10)]
    (tmp_path / "olmo" / "model_and_optim").mkdir(parents=True)
    (tmp_path / "olmo" / "model_and_optim" / ".metadata").touch()
    told = {
        store.path: ("checkpoint", (paths[1], paths[0])),
        paths[0]: ("checkpoint", (paths[0],)),
        "hf:org/model": ("hf", ("org/model",)),
        str(tmp_path / "olmo"): ("dcp", (str(tmp_path / "olmo" / "model_and_optim"),)),
        str(tmp_path / "olmo" / "model_and_optim"): ("dcp", (str(tmp_path / "olmo" / "model_and_optim"),)),
    }
    for path, expected in told.items():
        source = resolve_load(LoadConfig(path=path), None)
        assert source is not None
        assert (source.kind, source.paths) == expected


def test_torn_ones_are_passed_over_with_a_note(store: FolderStore) -> None:
    paths = [save(store, step).path for step in (1, 2, 3, 4)]
    Path(paths[3], "trainer.json").write_text("{}")
    weights = Path(paths[2], "model-00000.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    Path(paths[1], "manifest.json").unlink()
    found = state(0)
    loaded = load_newest(store, paths[::-1], found)
    assert (loaded.path, loaded.trainer) == (paths[0], {"epoch": 1})
    assert is_equal(found, state(1))
    assert [note.partition(": ")[0] for note in loaded.notes] == [
        f"{paths[3]}/trainer.json is damaged",
        f"{weights} is damaged",
        f"{paths[1]} is not a complete checkpoint",
    ]


def test_one_of_another_model_is_an_error_at_once(store: FolderStore) -> None:
    paths = [save(store, step).path for step in (1, 2)]
    with pytest.raises(CheckpointError, match="is of a different model"):
        load_newest(store, paths, {"model": {"other": 1}, "optim": {"other": 1}})


def test_one_of_another_optimiser_is_not_called_another_model(store: FolderStore) -> None:
    paths = [save(store, step).path for step in (1, 2)]
    with pytest.raises(
        CheckpointError, match=r"has the state of a different optimiser: missing `optim\.other`"
    ) as caught:
        load_newest(store, paths, {"optim": {"other": 1}})
    assert "optim: false" in caught.value.hint


def test_none_that_is_whole_says_why(store: FolderStore) -> None:
    path = save(store, 1).path
    Path(path, "layout.json").unlink()
    with pytest.raises(CheckpointError, match=r"all checkpoints are damaged: .*layout\.json is damaged: it is missing"):
        load_newest(store, [path], state())


@pytest.mark.parametrize("name", ["manifest.json", "trainer.json"])
def test_a_newer_one_that_does_not_open_is_told_and_none_whole_is_no_new_beginning(
    store: FolderStore, name: str
) -> None:
    first, second = (Path(save(store, step).path) for step in (1, 2))
    (second / name).write_text("{")
    source = resolve_load(LoadConfig(), store)
    assert source is not None
    assert source.paths == (str(first),)
    assert f"{second}/{name} is damaged" in source.notes[0]
    (first / name).write_text("{")
    with pytest.raises(CheckpointError, match="all checkpoints are damaged"):
        resolve_load(LoadConfig(), store)


def test_an_older_one_that_does_not_open_is_not_told_at_every_start(store: FolderStore) -> None:
    first, _ = (Path(save(store, step).path) for step in (1, 2))
    (first / "manifest.json").write_text("{")
    source = resolve_load(LoadConfig(), store)
    assert source is not None
    assert source.notes == ()
