"""What is not as it was committed is refused, by the name of the file or weight."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.checkpoint.conftest import is_equal, save, state
from windlass.train.checkpoint.store import FolderStore, open_store
from windlass.train.errors import CheckpointError
from windlass.train.parallel.world import World

MODEL = "model-00000.safetensors"


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda folder: cut(folder / MODEL), f"{MODEL} is damaged: it has 405 bytes instead of 406"),
    "longer": (lambda folder: (folder / MODEL).open("ab").write(b"x"), f"{MODEL} is damaged: it has 407 bytes"),
    "missing": (lambda folder: (folder / MODEL).unlink(), f"{MODEL} is damaged: it is missing"),
    "flipped": (lambda folder: flip(folder / MODEL, -1), f"{MODEL} is damaged: bytes 0 to 406 have changed (crc32)"),
    "layout": (
        lambda folder: flip(folder / "layout.json", 9),
        "layout.json is damaged: its content has changed (sha256)",
    ),
    "trainer": (lambda folder: flip(folder / "trainer.json", 9), "trainer.json is damaged: its content has changed"),
    "marker": (lambda folder: flip(folder / "manifest.json", 200), "manifest.json is damaged: "),
    "torn marker": (lambda folder: cut_half(folder / "manifest.json"), "manifest.json is damaged: "),
    "no marker": (
        lambda folder: (folder / "manifest.json").unlink(),
        "is not a complete checkpoint: it has no manifest.json",
    ),
    "empty": (empty, "no checkpoint at"),
}


def cut_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(store: FolderStore, kind: str) -> None:
    committed = save(store, 7)
    harm, problem = DAMAGE[kind]
    harm(Path(committed.path))
    with pytest.raises(CheckpointError, match=re.escape(problem)) as caught:
        store.load(committed.path, state())
    assert committed.path in str(caught.value)
    assert caught.value.hint
    unfinished = kind in ("no marker", "empty")
    assert caught.value.code == ("checkpoint-unfinished" if unfinished else "checkpoint-damaged")


@settings(max_examples=40)
@given(data=st.data())
def test_no_flipped_bit_is_ever_loaded(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    store = open_store(str(tmp_path_factory.mktemp("store")), World(device=torch.device("cpu")))
    folder = Path(save(store, 7).path)
    file = data.draw(st.sampled_from(sorted(os.listdir(folder))))
    content = (folder / file).read_bytes()
    place = int(data.draw(st.floats(0, 1, exclude_max=True)) * len(content) * 8)
    (folder / file).write_bytes(
        bytes(byte ^ (1 << place % 8) if at == place // 8 else byte for at, byte in enumerate(content))
    )
    found = state(0)
    try:
        store.load(str(folder), found)
    except CheckpointError:
        return
    # Only what nobody reads, or what says the same in other words, may change unseen: the time of the marker, the recipe.
    assert file in ("manifest.json", "config.json")
    assert is_equal(found, state(7))


def test_checksums_of_tensors_may_be_skipped_but_not_sizes(store: FolderStore) -> None:
    folder = Path(save(store, 7).path)
    flip(folder / MODEL, -1)
    quick = open_store(store.path, World(device=torch.device("cpu")), verifies=False)
    quick.load(str(folder), state())
    cut(folder / MODEL)
    with pytest.raises(CheckpointError, match="405 bytes instead of 406"):
        quick.load(str(folder), state())


def test_a_layout_that_points_elsewhere_is_refused(store: FolderStore) -> None:
    from windlass.record.manifest import build_manifest

    folder = Path(save(store, 7).path)
    layout = json.loads((folder / "layout.json").read_text())
    layout["files"][0]["name"] = "../../secret"
    (folder / "layout.json").write_text(json.dumps(layout))
    (folder / "manifest.json").write_text(json.dumps(build_manifest(folder, step=7).to_data()))
    with pytest.raises(CheckpointError, match=r"its checksums do not match '../../secret'"):
        store.load(str(folder), state())


def load_into(store: FolderStore, changed: dict[str, Any], *, is_strict: bool = True) -> None:
    store.load(save(store, 7).path, changed, is_strict=is_strict)


def test_another_model_is_named_with_near_names(store: FolderStore) -> None:
    other = {"model": {"heads.weight": torch.zeros(5, 4), "norm.weight": torch.zeros(3), "zzz": torch.zeros(1)}}
    with pytest.raises(CheckpointError) as caught:
        load_into(store, other)
    assert str(caught.value).endswith(
        "is of a different model: missing `model.heads.weight` (near: `model.head.weight`), `model.zzz`; "
        "unexpected `model.head.weight` (near: `model.heads.weight`)"
    )
    assert "checkpoint.load.is_strict=false" in caught.value.hint


def test_another_shape_is_named_strict_or_not(store: FolderStore) -> None:
    other = {"model": {"head.weight": torch.zeros(5, 5)}}
    for is_strict in (True, False):
        with pytest.raises(CheckpointError, match=re.escape("`model.head.weight` is [5, 4] there, [5, 5] here")):
            load_into(store, other, is_strict=is_strict)


def test_what_fits_is_taken_where_that_was_asked(store: FolderStore) -> None:
    other = {"model": {"norm.weight": torch.zeros(3), "new.weight": torch.full((2,), 4.0)}}
    load_into(store, other, is_strict=False)
    assert torch.equal(other["model"]["norm.weight"], state(7)["model"]["norm.weight"].float())
    assert other["model"]["new.weight"].tolist() == [4.0, 4.0]


def test_a_checkpoint_without_an_optimiser_says_so(store: FolderStore) -> None:
    pending = store.save({"model": {}}, {}, step=1, tokens=0, config={}, is_permanent=True, is_async=False)
    with pytest.raises(CheckpointError, match=r"missing `optim\.x`"):
        store.load(pending.wait().path, {"optim": {"x": torch.zeros(1)}})
