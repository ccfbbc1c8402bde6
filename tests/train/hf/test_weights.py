"""Files of weights: shards, memory, what is broken or of another model, and that an export appears whole or not at all."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.train.hf.models import MODELS
from tests.train.hf.test_convert_weights import decoder, oracle
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.train.errors import CheckpointError
from windlass.train.hf import convert_weights
from windlass.train.hf.companions import tokenizer_companions
from windlass.train.hf.convert_weights import (
    FileWeights,
    TensorToWrite,
    export_model,
    import_hf,
    load_hf,
    write_weights,
)
from windlass.train.hf.import_export import export_hf, import_model
from windlass.train.hf.mapped import ModuleWeights, fill
from windlass.train.hf.maps import our_shapes
from windlass.train.hf.sources import StoredCheckpoint, open_model
from windlass.train.hf.warm_start import warm_start
from windlass.train.model.decoder import Decoder
from windlass.train.modules.state import training_state

CONFIG = MODELS["llama"]


def export(folder: Path, name: str = "llama", **options: object) -> Path:
    model = decoder(MODELS[name])
    return export_model(model.config, ModuleWeights(model), folder, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MODELS)
def test_shapes_follow_from_the_configuration(name: str) -> None:
    with torch.device("meta"):
        model = Decoder(MODELS[name])
    assert our_shapes(MODELS[name]) == {key: tuple(weight.shape) for key, weight in model.named_parameters()}


def test_shards_with_an_index(tmp_path: Path) -> None:
    folder = export(tmp_path / "hf", "qwen3-moe", max_shard_bytes=20_000)
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    held = {name: file for file in files for name in load_file(folder / file)}
    assert index["weight_map"] == held
    assert index["metadata"]["total_size"] == sum(
        tensor.nbytes for file in files for tensor in load_file(folder / file).values()
    )
    model = decoder(MODELS["qwen3-moe"])
    back = Decoder(model.config)
    load_hf(back, folder)
    assert all(map(torch.equal, model.parameters(), back.parameters()))
    oracle(folder)  # transformers reads them too


def test_other_types(tmp_path: Path) -> None:
    folder = export(tmp_path / "hf", dtype="bfloat16")
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    back = Decoder(CONFIG)
    load_hf(back, folder)
    for want, found in zip(decoder(CONFIG).parameters(), back.parameters(), strict=True):
        assert torch.equal(want.bfloat16().float(), found)


class Counted:
    """Weights that are made when they are read, and how many were alive at once."""

    def __init__(self) -> None:
        self.most = 0
        self._alive: list[weakref.ref[Tensor]] = []

    def read(self) -> Tensor:
        made = torch.ones(1000)
        self._alive = [each for each in self._alive if each() is not None]
        self._alive.append(weakref.ref(made))
        self.most = max(self.most, len(self._alive))
        return made


def test_writing_holds_one_tensor_at_a_time(tmp_path: Path) -> None:
    counted = Counted()
    entries = [TensorToWrite(name=f"w{n}", shape=(1000,), dtype=torch.float32, read=counted.read) for n in range(20)]
    write_weights(tmp_path, entries, max_shard_bytes=10**12)
    assert len(load_file(tmp_path / "model.safetensors")) == 20
    assert counted.most == 1


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    folder = export(tmp_path / "hf")
    (folder / "mine").write_text("notes")
    with pytest.raises(PreconditionError) as raised:
        export(folder)
    assert raised.value.code == "already-exists"
    with pytest.raises(PreconditionError, match="holds mine; it is not an exported model"):
        export(folder, overwrite=True)
    assert (folder / "mine").exists()
    (folder / "mine").unlink()
    before = (folder / "config.json").stat().st_ino
    export(folder, overwrite=True)
    assert (folder / "config.json").stat().st_ino != before
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_an_export_replaces_no_file_and_says_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(PreconditionError, match="notes is a file"):
        export(tmp_path / "notes", overwrite=True)
    with pytest.raises(PreconditionError, match=r"cannot write .*hf: Not a directory"):
        export(tmp_path / "notes" / "hf")
    assert (tmp_path / "notes").read_text() == "mine"


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, entries: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, os.strerror(28))

    folder = export(tmp_path / "hf")
    before = (folder / "model.safetensors").read_bytes()
    monkeypatch.setattr("windlass.train.hf.convert_weights._write_shard", full)
    with pytest.raises(CheckpointError, match="No space left on device") as raised:
        export(folder, overwrite=True)
    assert raised.value.code == "not-writable"
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
    assert (folder / "model.safetensors").read_bytes() == before


def test_an_interrupted_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(convert_weights, "_publish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(tmp_path / "hf")
    assert list(tmp_path.iterdir()) == []


def test_missing_unexpected_and_misshapen_weights_are_named(tmp_path: Path) -> None:
    folder = export(tmp_path / "hf")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(31)
    tensors["model.extra.weight"] = tensors.pop("model.layers.0.mlp.up_proj.weight")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError) as raised:
        import_hf(folder)
    assert raised.value.code == "checkpoint-mismatch"
    assert raised.value.message == (
        f"the weights in {folder} are of a different model: model.layers.0.mlp.up_proj.weight is missing; "
        "the model has no model.extra.weight; model.norm.weight has shape [31], not [32]"
    )


def test_a_tied_head_and_old_frequencies_may_be_there(tmp_path: Path) -> None:
    folder = export(tmp_path / "hf", "llama-tied")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    load_hf(Decoder(MODELS["llama-tied"]), folder)


def test_broken_files_are_named(tmp_path: Path) -> None:
    folder = export(tmp_path / "hf", max_shard_bytes=20_000)
    first = min(folder.glob("*.safetensors"))
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match=f"{first} is not a valid safetensors file"):
        FileWeights(folder)
    first.unlink()
    with pytest.raises(CheckpointError, match=f"{first} is listed in model.safetensors.index.json but missing"):
        FileWeights(folder)
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(CheckpointError, match="is not a valid index of weights"):
        FileWeights(folder)


def test_an_index_does_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    export(tmp_path / "other")
    folder = export(tmp_path / "hf", max_shard_bytes=20_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = "../other/model.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="is not a valid index of weights"):
        FileWeights(folder)


def test_pickles_are_refused(tmp_path: Path) -> None:
    folder = export(tmp_path / "hf")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"in pytorch_model\.bin, a pickle"):
        import_hf(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors"):
        import_hf(folder)


def test_the_tokenizer_goes_along(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "notes.txt"):
        (tmp_path / "tokens" / name).write_text("{}")
    folder = export(tmp_path / "hf", companions=tokenizer_companions(tmp_path / "tokens", None, max_length=64))
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    with pytest.raises(PreconditionError, match="has no tokenizer"):
        export_hf(str(folder), tmp_path / "other", tokenizer=tmp_path / "hf" / "nowhere")
    assert not (tmp_path / "other").exists()


def test_import_makes_a_checkpoint_that_exports_the_same(tmp_path: Path) -> None:
    first = export(tmp_path / "hf", "qwen3-moe")
    checkpoint = import_model(f"hf:{first}", str(tmp_path / "checkpoints"))
    assert checkpoint.endswith("step-0")
    with open_model(str(tmp_path / "checkpoints")) as found:
        assert isinstance(found, StoredCheckpoint)
        assert (found.config, found.step) == (MODELS["qwen3-moe"], 0)
    second = export_hf(checkpoint, tmp_path / "again", dtype="float32")
    assert (second / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    assert (second / "config.json").read_bytes() == (first / "config.json").read_bytes()
    with pytest.raises(PreconditionError):
        import_model(f"hf:{first}", str(tmp_path / "checkpoints"))


def test_warm_start(tmp_path: Path) -> None:
    folder = export(tmp_path / "hf")
    model = Decoder(CONFIG)
    state = training_state(model, torch.optim.AdamW(model.parameters()))
    assert warm_start(state, f"hf:{folder}") == (str(folder), 0)
    assert all(map(torch.equal, decoder(CONFIG).parameters(), model.parameters()))
    with pytest.raises(CheckpointError) as raised:
        warm_start(state, f"hf:{folder}", optim=True)
    assert raised.value.code == "checkpoint-incomplete"
    other = Decoder(MODELS["qwen3-moe"])
    elsewhere = export_model(other.config, ModuleWeights(other), tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"blocks\.0\.ffn\.gate\.weight is missing"):
        warm_start(state, f"hf:{elsewhere}")


def test_parts_of_another_model_where_that_is_asked_for(tmp_path: Path) -> None:
    class Some:
        def shapes(self) -> Mapping[str, tuple[int, ...]]:
            return {"norm.weight": (32,), "strange": (3,)}

        def tensor(self, name: str) -> Tensor:
            return torch.full((32,), 7.0)

    model = Decoder(CONFIG)
    with pytest.raises(CheckpointError):
        fill(dict(model.named_parameters()), Some(), "some")
    fill(dict(model.named_parameters()), Some(), "some", is_strict=False)
    assert model.get_parameter("norm.weight").tolist() == [7.0] * 32


def test_nothing_there(tmp_path: Path) -> None:
    for path in (str(tmp_path), str(tmp_path / "nowhere"), f"hf:{tmp_path}/nowhere", "hf:./nowhere"):
        with pytest.raises(NotFoundError) as raised:
            open_model(path)
        assert raised.value.code == "no-checkpoint"


def test_a_model_that_the_hub_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub: run the tests with `make test`")

    def missing(repository: str, **_: object) -> str:
        raise OSError(f"404: no {repository}")

    monkeypatch.setattr(hub, "snapshot_download", missing)
    with pytest.raises(NotFoundError, match="cannot download lab/none from the Hugging Face hub: 404") as raised:
        open_model("hf:lab/none")
    assert raised.value.code == "hub-failed"
