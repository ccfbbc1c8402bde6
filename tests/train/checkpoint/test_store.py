"""Saving, listing, loading and removing, on one process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.report.conftest import Job, leave
from tests.train.checkpoint.conftest import is_equal, save, state
from windlass import report
from windlass.record import events
from windlass.record.journal import read_journal
from windlass.record.manifest import differences, read_manifest
from windlass.report import channel
from windlass.train.checkpoint.drafts import Draft
from windlass.train.checkpoint.store import FolderStore, open_store
from windlass.train.errors import CheckpointError
from windlass.train.parallel.world import World


@pytest.mark.parametrize("is_async", [False, True])
def test_a_state_comes_back_bit_by_bit(store: FolderStore, is_async: bool) -> None:
    committed = save(store, 7, is_async=is_async)
    found = state(0)
    assert store.load(committed.path, found) == {"epoch": 7}
    assert is_equal(found, state(7))


def test_a_folder_is_a_plain_one(store: FolderStore) -> None:
    folder = Path(save(store, 7).path)
    assert folder.name == "step-7"
    assert sorted(os.listdir(folder)) == [
        "config.json",
        "layout.json",
        "manifest.json",
        "model-00000.safetensors",
        "optim-00000.safetensors",
        "trainer.json",
    ]
    assert json.loads((folder / "config.json").read_text()) == {"name": "x"}
    assert torch.equal(load_file(folder / "model-00000.safetensors")["head.weight"], state(7)["model"]["head.weight"])
    assert os.listdir(store.path) == ["step-7"]


def test_the_marker_is_the_manifest_of_windlass(store: FolderStore) -> None:
    folder = Path(save(store, 7).path)
    manifest = read_manifest(folder)
    assert manifest.step == 7
    assert len(manifest.entries) == 5
    assert differences(folder, manifest) == []


def test_torch_reads_it_too(store: FolderStore) -> None:
    import torch.distributed.checkpoint as dcp

    committed = save(store, 3)
    wanted = {"head.weight": torch.zeros(5, 4), "head.weight.exp_avg": torch.zeros(5, 4)}
    dcp.load(wanted, storage_reader=dcp.HuggingFaceStorageReader(committed.path), no_dist=True)
    assert torch.equal(wanted["head.weight"], state(3)["model"]["head.weight"])
    assert torch.equal(wanted["head.weight.exp_avg"], state(3)["optim"]["head.weight.exp_avg"])


def test_committed_ones_are_listed_in_order_of_steps(store: FolderStore) -> None:
    for step in (10, 9, 100):
        save(store, step, is_permanent=step != 9)
    assert [(item.step, item.tokens, item.is_permanent) for item in store.committed()] == [
        (9, 576, False),
        (10, 640, True),
        (100, 6400, True),
    ]


def test_the_same_step_again_replaces_it(store: FolderStore) -> None:
    save(store, 7)
    pending = store.save(state(1), {}, step=7, tokens=0, config={}, is_permanent=True, is_async=True)
    found = state(0)
    store.load(pending.wait().path, found)
    assert is_equal(found, state(1))
    assert os.listdir(store.path) == ["step-7"]


def test_tensors_may_change_once_an_asynchronous_save_returned(store: FolderStore) -> None:
    changing = state(7)
    pending = store.save(changing, {}, step=7, tokens=0, config={}, is_permanent=True, is_async=True)
    for tensor in (*changing["model"].values(), changing["optim"]["head.weight.exp_avg"]):
        tensor.zero_()
    changing["optim"]["lr"] = 0.0
    found = state(0)
    store.load(pending.wait().path, found)
    assert is_equal(found, state(7))


def test_a_dropped_one_is_gone_and_may_be_dropped_again(store: FolderStore) -> None:
    committed = save(store, 7)
    store.drop(committed.path)
    store.drop(committed.path)
    assert store.committed() == []
    assert os.listdir(store.path) == []


def test_small_files_may_go_with_it(store: FolderStore) -> None:
    pending = store.save(
        state(), {}, step=1, tokens=0, config={}, is_permanent=True, is_async=False, extra={"compiled.bin": b"\0\1"}
    )
    path = pending.wait().path
    assert store.read_extra(path, "compiled.bin") == b"\0\1"
    assert store.read_extra(path, "other") is None


def test_types_are_converted_and_views_are_filled(store: FolderStore) -> None:
    committed = save(store, 7)
    wide = torch.zeros(4, 5)
    found = state(0)
    found["model"]["head.weight"] = wide.T
    found["model"]["norm.weight"] = torch.zeros(3)
    store.load(committed.path, found)
    assert torch.equal(wide.T, state(7)["model"]["head.weight"])
    assert torch.equal(found["model"]["norm.weight"], state(7)["model"]["norm.weight"].float())


def test_numbers_are_not_cut_to_whole_ones(store: FolderStore) -> None:
    committed = save(store, 7)
    with pytest.raises(CheckpointError, match=r"`model\.head\.weight` is F32 in .*, I64 here"):
        store.load(committed.path, {"model": {"head.weight": torch.zeros((5, 4), dtype=torch.int64)}}, is_strict=False)


def test_a_part_of_a_state_may_be_loaded(store: FolderStore) -> None:
    committed = save(store, 7)
    found = {"model": state(0)["model"]}
    store.load(committed.path, found)
    assert is_equal(found, {"model": state(7)["model"]})


def test_two_parts_of_one_name_are_refused(store: FolderStore) -> None:
    twice = {"model": {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}}
    with pytest.raises(CheckpointError, match=r"duplicate name `model\.a\.b` in the state") as caught:
        store.save(twice, {}, step=1, tokens=0, config={}, is_permanent=True, is_async=False)
    assert caught.value.code == "checkpoint-state"


def test_a_part_that_cannot_name_a_file_is_refused(store: FolderStore) -> None:
    with pytest.raises(CheckpointError, match=r"invalid section `\.\./x` of the state"):
        store.save({"../x": {"a": torch.zeros(1)}}, {}, step=1, tokens=0, config={}, is_permanent=True, is_async=False)


def test_an_object_is_refused(store: FolderStore) -> None:
    wrong: dict[str, Any] = {"model": {"a": object()}}
    with pytest.raises(CheckpointError, match=r"cannot save `model\.a`: unsupported type object"):
        store.save(wrong, {}, step=1, tokens=0, config={}, is_permanent=True, is_async=False)
    assert not Path(store.path).exists()


def test_a_job_of_windlass_hears_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch)
    try:
        store = open_store(str(job.checkpoints), World(device=torch.device("cpu")))
        committed = save(store, 7, is_async=True)
        (record,) = job.records(events.CHECKPOINT)
        assert (record.data["path"], record.data["step"]) == (committed.path, 7)
        assert report.latest_checkpoint() == Path(committed.path)
    finally:
        leave()


@pytest.mark.parametrize("is_async", [False, True])
def test_what_was_reported_is_on_the_disk_before_the_checkpoint_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    monkeypatch.setattr(channel, "FLUSH_EVERY_S", 600.0)
    commit = Draft.commit
    seen: list[int] = []

    def look(draft: Draft, manifest: bytes) -> None:
        seen.extend(record.data["step"] for record in read_journal(job.journal) if record.kind == events.METRICS)
        commit(draft, manifest)

    monkeypatch.setattr(Draft, "commit", look)
    job = Job(tmp_path, monkeypatch)
    try:
        store = open_store(str(job.checkpoints), World(device=torch.device("cpu")))
        report.metrics({"loss": 1.0}, step=7)
        save(store, 7, is_async=is_async)
        assert seen == [7]
    finally:
        leave()
