"""`windlass ckpt`: a small checkpoint listed, verified, exported, imported, asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Windlass
from tests.train.narrow import decoder_of
from windlass.train.checkpoint.store import open_store
from windlass.train.model.decoder import Decoder
from windlass.train.model.init import init_weights
from windlass.train.parallel.world import World
from windlass.train.resolve import resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of steps 1 and 2."""
    resolved = resolve("tiny", ["model.d_model=32", "model.num_layers=2", "model.hidden=32"])
    model = Decoder(decoder_of(resolved.recipe))
    init_weights(model, 0, device=torch.device("cpu"))
    store = open_store(str(tmp_path / "run"), World(device=torch.device("cpu")))
    for step in (1, 2):
        store.save(
            {"model": dict(model.state_dict())},
            {},
            step=step,
            tokens=step * 4096,
            config=resolved.record(),
            is_permanent=step == 2,
            is_async=False,
        ).wait()
    return tmp_path / "run"


def test_checkpoints_are_listed(windlass: Windlass, folder: Path) -> None:
    lines = [line.split() for line in windlass("ckpt", "ls", str(folder)).out.splitlines()[1:]]
    assert lines == [
        ["1", "4,096", "ephemeral", str(folder / "step-1")],
        ["2", "8,192", "permanent", str(folder / "step-2")],
    ]
    rows = json.loads(windlass("ckpt", "ls", str(folder), "--json").out)["checkpoints"]
    assert [(row["step"], row["is_permanent"]) for row in rows] == [(1, False), (2, True)]
    assert windlass("ckpt", "ls", str(folder / "none")).err == f"no complete checkpoint in {folder / 'none'}\n"


def test_a_checkpoint_is_verified_byte_by_byte(windlass: Windlass, folder: Path) -> None:
    good = windlass("ckpt", "verify", str(folder))
    assert (good.code, good.out.startswith(f"{folder / 'step-2'} is complete: ")) == (0, True)
    shard = next((folder / "step-2" / "model").rglob("*.safetensors"), None) or next(
        path for path in (folder / "step-2").rglob("*") if path.suffix == ".safetensors"
    )
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    bad = windlass("ckpt", "verify", str(folder / "step-2"))
    assert (bad.code, bad.out) == (8, "")
    assert shard.name in bad.err
    assert windlass("ckpt", "verify", str(folder / "step-1")).code == 0


def test_the_newest_is_verified_also_where_its_marker_is_torn(windlass: Windlass, folder: Path) -> None:
    (folder / "step-2" / "manifest.json").write_text("{")
    bad = windlass("ckpt", "verify", str(folder))
    assert (bad.code, "step-2/manifest.json is damaged" in bad.err) == (8, True)
    assert windlass("ckpt", "verify", str(folder / "step-1")).code == 0


@pytest.mark.parametrize("words", [("--temperature", "nan"), ("--temperature", "inf"), ("--top-p", "nan")])
def test_numbers_that_are_none_are_refused(windlass: Windlass, words: tuple[str, str]) -> None:
    bad = windlass("ckpt", "generate", "nowhere", "x", *words)
    assert (bad.code, f"invalid number {words[1]}" in bad.err) == (2, True)


def test_a_checkpoint_goes_to_hugging_face_and_back(windlass: Windlass, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "hf"
    exported = windlass("ckpt", "export", str(folder), "--to", "hf", "--out", str(out), "--dtype", "float32")
    assert (exported.code, exported.out) == (0, f"{out}\n")
    assert (out / "model.safetensors").is_file()
    again = windlass("ckpt", "export", str(folder), "--out", str(out))
    assert (again.code, "--overwrite" in again.err) == (8, True)
    back = windlass("ckpt", "import", f"hf:{out}", "--out", str(tmp_path / "back"))
    assert back.code == 0
    assert windlass("ckpt", "verify", back.out.strip()).code == 0


def test_a_checkpoint_is_asked(windlass: Windlass, folder: Path) -> None:
    said = windlass("ckpt", "generate", str(folder), "ab", "c", "--tokens", "3", "--json")
    texts = json.loads(said.out)["texts"]
    assert [text["prompt"] for text in texts] == ["ab", "c"]
    assert windlass("ckpt", "generate", str(folder), "ab", "c", "--tokens", "3", "--json") == said
    assert windlass("ckpt", "generate", str(folder), "ab", "--tokens", "3").out == f"ab{texts[0]['continuation']}\n"
    assert windlass("ckpt", "generate", str(folder), "").code == 2
    too_long = windlass("ckpt", "generate", str(folder), "ab", "--tokens", "100000")
    assert too_long.code == 2
    assert "exceed the" in too_long.err


def test_two_checkpoints_are_compared(windlass: Windlass, folder: Path) -> None:
    one, two = str(folder / "step-1"), str(folder / "step-2")
    assert windlass("ckpt", "diff", one, one).out.startswith(f"{one} and {one} are equal in all they share: ")
    found = json.loads(windlass("ckpt", "diff", one, two, "--json").out)
    assert (found["weights"], found["settings"], found["num_equal"] > 10) == ([], [], True)


def test_two_runs_are_compared_by_their_losses(windlass: Windlass, tmp_path: Path) -> None:
    for name, loss in (("a", 3.0), ("b", 3.5)):
        lines = [{"step": 1, "train/loss": 4.0}, {"step": 2, "train/loss": loss}]
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    words = ("ckpt", "compare-loss", str(tmp_path / "a"), str(tmp_path / "b"))
    assert "train/loss: differs from step 2: 3.0 and 3.5" in windlass(*words).out
    assert json.loads(windlass(*words, "--tolerance", "0.6", "--json").out)["is_equal"] is True


def test_what_is_no_checkpoint_is_refused(windlass: Windlass, tmp_path: Path) -> None:
    for words in (("export", str(tmp_path)), ("generate", str(tmp_path), "x"), ("verify", str(tmp_path))):
        result = windlass("ckpt", *words)
        assert (result.code in (4, 8), result.out, "hint: " in result.err) == (True, "", True)
