"""Models that others made: their configurations, weights and checkpoints, damaged in every way."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
import struct
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from tests.hostile.mutations import mutated
from tests.hostile.trying import Target
from tests.train.hf.models import MODELS
from tests.train.olmo_core.written import model_data
from windlass.core.errors import WindlassError
from windlass.core.json_text import decode_json
from windlass.train.checkpoint.dcp_reader import read_dcp
from windlass.train.checkpoint.files import LocalFolder
from windlass.train.checkpoint.listing import list_committed
from windlass.train.checkpoint.store import open_store
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.tokenizer import SpecialIds, load_tokenizer
from windlass.train.hf.companions import byte_tokenizer_files, companions_in
from windlass.train.hf.config import read_config
from windlass.train.hf.convert_weights import export_model, import_hf
from windlass.train.hf.mapped import ModuleWeights
from windlass.train.hf.sources import StoredCheckpoint
from windlass.train.model.decoder import Decoder
from windlass.train.olmo_core.config import from_olmo_core
from windlass.train.parallel.world import World

__all__ = ["WEIGHTS"]

_FAMILIES = ("llama-3.1", "llama-yarn", "olmo3", "qwen3-moe")


@lru_cache(maxsize=1)
def _good() -> Path:
    """Whole folders to copy from: exported models, a checkpoint of ours, one of torch's."""
    base = Path(tempfile.mkdtemp(prefix="windlass-hostile-"))
    for name in _FAMILIES:
        model = Decoder(MODELS[name])
        shards = 20_000 if name == "olmo3" else 1 << 30
        export_model(model.config, ModuleWeights(model), base / name, max_shard_bytes=shards)
    weight = torch.arange(20.0).reshape(5, 4)
    state: dict[str, Any] = {"model": {"a": weight, "b": weight[0].bfloat16()}, "optim": {"a.exp_avg": weight, "lr": 1}}
    store = open_store(str(base / "ours"), World(device=torch.device("cpu")))
    config = {"model": {"d_model": 8, "num_layers": 1, "vocab_size": 9, "attention": {"num_heads": 2}}}
    store.save(state, {"epoch": 1}, step=3, tokens=9, config=config, is_permanent=True, is_async=False).wait()
    dcp.save(state, checkpoint_id=str(base / "torch"), no_dist=True)
    (base / "tokenizer.json").write_bytes(byte_tokenizer_files(SpecialIds(), 64)["tokenizer.json"])
    return base


def _config(folder: Path, rng: random.Random) -> None:
    content = (_good() / rng.choice(_FAMILIES) / "config.json").read_bytes()
    (folder / "config.json").write_bytes(mutated(content, rng))
    with contextlib.suppress(WindlassError):
        read_config(folder)
    with contextlib.suppress(WindlassError):
        companions_in(folder)


def _olmo_config(folder: Path, rng: random.Random) -> None:
    content = mutated(json.dumps({"model": model_data()}).encode(), rng)
    with contextlib.suppress(ValueError, WindlassError):
        data = decode_json(content)
        if isinstance(data, dict):
            from_olmo_core(data)


def _hf(folder: Path, rng: random.Random) -> None:
    """One file of an exported model is damaged; of weights mostly the header, with its right length."""
    copy = folder / "model"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(_good() / rng.choice(_FAMILIES), copy)
    names = sorted(path.name for path in copy.iterdir())
    path = copy / rng.choice(names)
    content = path.read_bytes()
    if path.suffix == ".safetensors" and rng.random() < 0.8:
        end = 8 + struct.unpack("<Q", content[:8])[0]
        header = mutated(content[8:end], rng)
        content = struct.pack("<Q", len(header)) + header + content[end:]
        path.write_bytes(content)
    else:
        path.write_bytes(mutated(content, rng))
    with contextlib.suppress(WindlassError), import_hf(copy) as weights:
        for _ in weights:
            pass


def _checkpoint(folder: Path, rng: random.Random) -> None:
    """A checkpoint of ours whose small files are damaged, under a manifest that fits them."""
    copy = folder / "ours"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(_good() / "ours", copy)
    (step,) = copy.glob("step-*")
    name = rng.choice(("layout.json", "layout.json", "trainer.json", "config.json", "manifest.json"))
    content = mutated((step / name).read_bytes(), rng)
    (step / name).write_bytes(content)
    if name != "manifest.json":
        _commit_again(step, name, content)
    with contextlib.suppress(WindlassError):
        list_committed(LocalFolder(copy))
    with contextlib.suppress(WindlassError):
        source = StoredCheckpoint(str(step))
        with contextlib.suppress(WindlassError):
            assert source.config is not None
        for section in ("model", "optim"):
            for tensor in source.shapes(section):
                source.tensor(tensor, section)
    with contextlib.suppress(WindlassError):
        store = open_store(str(copy), World(device=torch.device("cpu")))
        state = {"model": {"a": torch.zeros(5, 4), "b": torch.zeros(4).bfloat16()}}
        store.load(str(step), state, is_strict=False)


def _commit_again(step: Path, name: str, content: bytes) -> None:
    from windlass.record.manifest import Manifest, ManifestEntry

    found = Manifest.from_data(json.loads((step / "manifest.json").read_text()))
    digest = hashlib.sha256(content).hexdigest()
    entries = [ManifestEntry(name, len(content), digest) if entry.path == name else entry for entry in found.entries]
    data = Manifest(tuple(entries), found.step, found.at).to_data()
    (step / "manifest.json").write_text(json.dumps(data))


def _torch(folder: Path, rng: random.Random) -> None:
    copy = folder / "torch"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(_good() / "torch", copy)
    path = rng.choice([copy / ".metadata", *sorted(copy.glob("*.distcp"))])
    path.write_bytes(mutated(path.read_bytes(), rng))
    with contextlib.suppress(WindlassError):
        found = read_dcp(str(copy))
        for name in found:
            with contextlib.suppress(WindlassError):
                found[name].read()
        for name in found.value_names:
            with contextlib.suppress(WindlassError):
                found.value(name)


def _tokenizer(folder: Path, rng: random.Random) -> None:
    path = folder / "tokenizer.json"
    path.write_bytes(mutated((_good() / "tokenizer.json").read_bytes(), rng))
    with contextlib.suppress(WindlassError):
        load_tokenizer(TokenizerConfig(path=str(path)))


WEIGHTS: dict[str, Target] = {
    "hf config": _config,
    "hf weights": _hf,
    "olmo-core config": _olmo_config,
    "checkpoint": _checkpoint,
    "torch checkpoint": _torch,
    "tokenizer": _tokenizer,
}
"""By what they read."""
