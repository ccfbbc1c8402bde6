"""Tasks of lm-evaluation-harness under two processes: every way of being parallel finds what one process finds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

os.environ["HF_DATASETS_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"

from windlass.testing import run_distributed_test
from windlass.train.data.tokenizer import ByteTokenizer
from windlass.train.evaluate.downstream import run_tasks
from windlass.train.model.config import AttentionConfig, ModelConfig
from windlass.train.model.decoder import Decoder
from windlass.train.model.init import init_weights
from windlass.train.parallel.apply import parallelize
from windlass.train.parallel.config import ParallelConfig
from windlass.train.parallel.world import World

pytestmark = pytest.mark.system

CONFIG = ModelConfig(
    d_model=16, num_layers=2, vocab_size=258, hidden=32, max_length=24, attention=AttentionConfig(num_heads=2)
)
TIED = replace(CONFIG, is_tied=True, logit_soft_cap=5.0)
PLANS = [
    (CONFIG, ParallelConfig(data="ddp")),
    (CONFIG, ParallelConfig(data="fsdp")),
    (CONFIG, ParallelConfig(tensor=2)),
    (TIED, ParallelConfig(tensor=2)),
]
QUESTIONS = ["ab", "one two", "go and see it", "h", "every good boy does"]
TASKS = {
    "asked": "output_type: loglikelihood_rolling\nmetric_list: [{metric: byte_perplexity}]",
    "made": "output_type: generate_until\ngeneration_kwargs: {until: [], max_gen_toks: 3}\nmetric_list: [{metric: bleu}]",
}


def write_tasks(folder: Path) -> None:
    (folder / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in QUESTIONS))
    for name, settings in TASKS.items():
        (folder / f"{name}.yaml").write_text(
            f"""
task: windlass_{name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder / "data.jsonl"}}}, cache_dir: {folder / "cache"}}}
test_split: test
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{text}}}}"
{settings}
"""
        )


def scores(world: World, folder: Path, config: ModelConfig, parallel: ParallelConfig) -> Mapping[str, float] | None:
    own = World(rank=world.rank, size=world.size, local_rank=world.local_rank, device=world.device)
    with torch.device("meta"):
        model = Decoder(config)
    parallelize(model, parallel, own)
    init_weights(model, 0)
    with torch.no_grad():
        model.get_parameter("embed.weight").mul_(20)  # so that answers differ
    return run_tasks(model, ByteTokenizer(), [f"windlass_{name}" for name in TASKS], include=str(folder), world=own)


def all_scores(world: World, folder: Path) -> list[Mapping[str, float] | None]:
    return [scores(world, folder, config, parallel) for config, parallel in PLANS]


def test_every_mesh_finds_the_same(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    alone = World(device=torch.device("cpu"))
    wanted = [scores(alone, tmp_path, config, ParallelConfig()) for config, _ in PLANS]
    assert set(wanted[0] or {}) == {"eval/windlass_asked/byte_perplexity", "eval/windlass_made/bleu"}
    for found in run_distributed_test(all_scores, num_processes=2, args=(tmp_path,)):
        for plan, one, other in zip(PLANS, wanted, found, strict=True):
            assert other == pytest.approx(one, rel=1e-5), plan
