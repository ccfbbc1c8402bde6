"""Checkpoints in object stores: the same promises without renames."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.lab.s3 import S3Lab
from tests.train.checkpoint.conftest import is_equal, save, state
from windlass.core.errors import PreconditionError
from windlass.train.checkpoint.drafts import begin_draft
from windlass.train.checkpoint.store import FolderStore, open_store
from windlass.train.errors import CheckpointError
from windlass.train.parallel.world import World


def bucket(url: str = "") -> FolderStore:
    return open_store(url or f"memory://{uuid.uuid4().hex}/run", World(device=torch.device("cpu")))


def round_trip(store: FolderStore) -> None:
    assert store.committed() == []
    paths = [save(store, step, is_async=True).path for step in (1, 2)]
    assert [item.path for item in store.committed()] == paths
    assert paths[1] == f"{store.path}/step-2"
    found = state(0)
    assert store.load(paths[0], found) == {"epoch": 1}
    assert is_equal(found, state(1))
    save(store, 2)
    store.drop(paths[0])
    store.drop(paths[0])
    assert [item.step for item in store.committed()] == [2]
    assert store.files.names() == ["step-2"]


def test_a_round_trip() -> None:
    round_trip(bucket())


def unfinished(store: FolderStore, owner: str, step: int) -> None:
    draft = begin_draft(store.files, f"step-{step}", owner)
    with draft.files.create("model-00000.safetensors") as file:
        file.write(b"half")


def test_what_has_no_marker_is_none_and_is_swept_by_its_owner_alone() -> None:
    store = bucket()
    save(store, 1)
    unfinished(store, "run", 2)
    unfinished(store, "other", 3)
    assert [item.step for item in store.committed()] == [1]
    with pytest.raises(CheckpointError, match=r"step-2 is not a complete checkpoint: it has no manifest\.json"):
        store.load(f"{store.path}/step-2", state())
    save(store, 4)
    names = store.files.names()
    assert [name for name in names if not name.startswith(".saving-other-")] == ["step-1", "step-3", "step-4"]
    assert len(names) == 4


def test_damage_is_named() -> None:
    store = bucket()
    path = save(store, 1).path
    with store.files.at("step-1").create("optim-00000.safetensors") as file:
        file.write(b"x" * 10)
    with pytest.raises(CheckpointError, match=r"step-1/optim-00000\.safetensors is damaged: it has 10 bytes"):
        store.load(path, state())


def test_an_upload_that_fails_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = bucket()
    save(store, 1)
    original = type(store.files).create

    def failing(self: Any, name: str) -> Any:
        if name.startswith("optim"):
            raise ConnectionError("the network is gone")
        return original(self, name)

    monkeypatch.setattr(type(store.files), "create", failing)
    with pytest.raises(CheckpointError, match="step 2 was not saved: rank 0: ConnectionError: the network is gone"):
        save(store, 2, is_async=True)
    monkeypatch.undo()
    assert [item.step for item in store.committed()] == [1]
    assert store.files.names() == ["step-1"]


def test_an_unknown_kind_of_url_says_what_to_install() -> None:
    with pytest.raises(PreconditionError, match="cannot open nosuch://bucket") as caught:
        bucket("nosuch://bucket")
    assert "pip install fsspec" in caught.value.hint
    assert caught.value.code == "checkpoint-storage"


def test_a_store_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store = bucket()

    def refused(self: Any, path: str, **options: object) -> None:
        raise RuntimeError("no credentials")

    monkeypatch.setattr(type(store.files._system), "ls", refused)  # type: ignore[attr-defined]
    with pytest.raises(PreconditionError, match=r"cannot list .*: no credentials"):
        store.committed()


@pytest.mark.system
def test_s3(need: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    need("s3")
    lab = S3Lab()
    lab.up()
    try:
        for name, value in lab.env.items():
            monkeypatch.setenv(name, value)
        import fsspec

        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("checkpoints-of-a-test")
        round_trip(bucket("s3://checkpoints-of-a-test/some/run"))
    finally:
        lab.down()
