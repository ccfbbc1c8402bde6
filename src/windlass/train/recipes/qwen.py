"""Fine-tuning of a small Qwen 3 model."""

from __future__ import annotations

from windlass.train.checkpoint.config import CheckpointerConfig, LoadConfig
from windlass.train.data.config import DataConfig, SourceConfig, TokenizerConfig
from windlass.train.duration import Duration
from windlass.train.model.presets import preset
from windlass.train.optim.config import AdamWConfig
from windlass.train.optim.schedule_config import LinearConfig
from windlass.train.parallel.config import ParallelConfig
from windlass.train.recipe import Recipe

__all__ = ["qwen3_0_6b"]


def qwen3_0_6b() -> Recipe:
    """Return the recipe for fine-tuning Qwen 3 0.6B on your own documents.

    It starts from the published weights: two passes, whole documents packed into rows.

    The rate, schedule and batch are our choice, common for a model of this size; they are not from a published run.
    `checkpoint.load.path=hf:FOLDER` loads weights that were downloaded before.

    Source of the model: Qwen/Qwen3-0.6B on the Hugging Face hub.
    """
    return Recipe(
        name="qwen3-0.6b",
        model=preset("qwen3-0.6b"),
        data=DataConfig(
            sources=(SourceConfig(path=("documents/*.jsonl",)),),
            tokenizer=TokenizerConfig(path="Qwen/Qwen3-0.6B"),
            sequence_length=4096,
            layout="pack",
            mask_documents=True,
            batch_tokens=64 * 4096,
            microbatch_tokens=4 * 4096,
        ),
        duration=Duration.epochs(2),
        optim=AdamWConfig(lr=2e-5, betas=(0.9, 0.999), weight_decay=0.0),
        schedule=LinearConfig(warmup=Duration.steps(50)),
        parallel=ParallelConfig(precision="bfloat16", compile=True),
        checkpoint=CheckpointerConfig(
            every=Duration.steps(500), keep=2, load=LoadConfig(path="hf:Qwen/Qwen3-0.6B", trainer=False, optim=False)
        ),
    )
