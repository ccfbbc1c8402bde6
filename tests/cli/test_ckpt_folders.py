"""`windlass ckpt` and the folders of Hugging Face that it writes."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Windlass
from tests.train.hf.models import MODELS
from tests.train.hf.test_companions import train_on_bytes
from tests.train.hf.test_convert_weights import decoder
from windlass.train.hf.convert_weights import export_model
from windlass.train.hf.import_export import import_model
from windlass.train.hf.mapped import ModuleWeights


def test_an_import_keeps_nothing_where_nothing_lies(windlass: Windlass, tmp_path: Path) -> None:
    model = decoder(MODELS["llama"])
    first = export_model(model.config, ModuleWeights(model), tmp_path / "first")
    checkpoint = import_model(str(first), str(tmp_path / "checkpoints"))
    done = windlass("ckpt", "export", checkpoint, "--out", str(tmp_path / "second"))
    assert done.code == 0
    assert "no tokenizer exported" in done.err
    assert {path.name for path in (tmp_path / "second").iterdir()} == {"config.json", "model.safetensors"}


def test_generate_works_on_an_exported_folder(windlass: Windlass, tmp_path: Path) -> None:
    trained = train_on_bytes(tmp_path)
    assert windlass("ckpt", "export", str(trained), "--out", str(tmp_path / "out"), "--dtype", "float32").code == 0
    said = [windlass("ckpt", "generate", str(path), "wo", "--tokens", "4") for path in (trained, tmp_path / "out")]
    assert said[0].code == 0
    assert said[0].out == said[1].out
