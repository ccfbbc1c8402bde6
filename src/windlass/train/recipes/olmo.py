"""Pre-training of OLMo 2 and OLMo 3 with the published settings, as data.

Not included: the data mixes (`DataMix` of OLMo-core; tokens of the dolma2 tokenizer; give your own paths) and
the evaluations during training. The later stages are in `olmo_stages`. Weights are sharded over all processes (`fsdp`),
where the sources shard within a node or 64 processes and copy across: with N such groups of processes add
`parallel.data=hsdp parallel.replicas=N`.

OLMo-core skips a step whose loss or gradient norm is six standard deviations above the mean of the last 128 steps: `skip`.
Its optimiser initially counted steps wrongly, which made the learning rate 2.2 times higher (according to
`SkipStepAdamWConfig` of ai2-olmo-core 3.0.0); its sources do not say which published runs were affected.
"""

from __future__ import annotations

from windlass.train.checkpoint.config import CheckpointerConfig
from windlass.train.data.config import DataConfig
from windlass.train.duration import Duration
from windlass.train.model.config import ModelConfig
from windlass.train.model.presets import preset
from windlass.train.optim.config import AdamWConfig, LossConfig
from windlass.train.optim.schedule_config import CosineConfig
from windlass.train.parallel.config import FullCheckpointing, ParallelConfig
from windlass.train.recipe import Recipe
from windlass.train.recipes.olmo_shared import SEED, VOCABULARY, adamw, token_data

__all__ = ["olmo2_1b", "olmo2_7b", "olmo2_32b", "olmo3_7b", "olmo3_32b"]


def olmo2_1b() -> Recipe:
    """Return the recipe for OLMo 2 1B: 4 trillion tokens in batches of 2,097,152 tokens.

    Source: OLMo-core, `src/scripts/train/OLMo2/OLMo2-1B.py` at commit 18b8fb6.
    """
    return _pretraining(
        "olmo2-1b",
        model=preset("olmo2-1b", vocab_size=VOCABULARY),
        optim=adamw(lr=4e-4, weight_decay=0.033),
        data=token_data(sequence_length=4096, rows=512, rows_at_once=8),
        duration=Duration.tokens(4 * 10**12),
        checkpoint=CheckpointerConfig(every=Duration.steps(100_000), ephemeral_every=Duration.steps(5000)),
    )


def olmo2_7b() -> Recipe:
    """Return the recipe for OLMo 2 7B: 4 trillion tokens in batches of 4,194,304 tokens.

    The published model was trained by the older OLMo trainer; these are the settings of its successor for this size.

    Source: OLMo-core, `src/scripts/train/OLMo2/OLMo2-7B.py` at commit 138b1fc.
    """
    return _pretraining(
        "olmo2-7b",
        model=preset("olmo2-7b", vocab_size=VOCABULARY),
        optim=adamw(lr=3e-4),
        data=token_data(sequence_length=4096, rows=1024, rows_at_once=2),
        duration=Duration.tokens(4 * 10**12),
        checkpoint=CheckpointerConfig(every=Duration.steps(10_000), ephemeral_every=Duration.steps(250)),
    )


def olmo2_32b() -> Recipe:
    """Return the recipe for OLMo 2 32B: 6.5 trillion tokens in batches of 8,388,608 tokens.

    The activations of every block are recomputed.

    The source also has a variant for 1,024 GPUs: half the microbatch, and recomputation of only the feed-forward layers.

    Source: OLMo-core, `src/scripts/official/OLMo2/OLMo-2-0325-32B-train.py` at commit 138b1fc.
    """
    return _pretraining(
        "olmo2-32b",
        model=preset("olmo2-32b", vocab_size=VOCABULARY),
        optim=adamw(lr=6e-4),
        data=token_data(sequence_length=4096, rows=2048, rows_at_once=4),
        duration=Duration.tokens(65 * 10**11),
        checkpoint=CheckpointerConfig(every=Duration.steps(1000), ephemeral_every=Duration.steps(200)),
        checkpointing=FullCheckpointing(),
    )


def olmo3_7b() -> Recipe:
    """Return the recipe for OLMo 3 7B, part one: a cosine over 5 trillion tokens, stopped at step 597,046.

    Batches have 4,194,304 tokens.

    Part two continues to the end of the data (5.93 trillion tokens) along the second half of a cosine over
    7 trillion.

    Source: OLMo-core, `src/scripts/official/OLMo3/OLMo-3-1025-7B-pretrain-1.py` at commit 18b8fb6, `...-pretrain-2.py`
    at commit 138b1fc, and the README beside them.
    """
    return _pretraining(
        "olmo3-7b",
        model=preset("olmo3-7b", vocab_size=VOCABULARY),
        optim=adamw(lr=3e-4),
        data=token_data(sequence_length=8192, rows=512, rows_at_once=2),
        duration=Duration.tokens(5 * 10**12),
        stop=Duration.steps(597_046),
        checkpoint=CheckpointerConfig(every=Duration.steps(1000), is_async=False),
    )


def olmo3_32b() -> Recipe:
    """Return the recipe for OLMo 3 32B: one pass over the data (5.5 trillion tokens) in batches of 8,388,608 tokens.

    Not included: the source's filter of rows with long repetitions.

    Source: OLMo-core, `src/scripts/official/OLMo3/OLMo-3-1025-32B-pretrain.py` at commit 09042a6, and the README beside it.
    """
    return _pretraining(
        "olmo3-32b",
        model=preset("olmo3-32b", vocab_size=VOCABULARY),
        optim=adamw(lr=6e-4),
        data=token_data(sequence_length=8192, rows=1024, rows_at_once=1),
        duration=Duration.epochs(1),
        checkpoint=CheckpointerConfig(every=Duration.steps(1000), is_async=False),
    )


def _pretraining(
    name: str,
    *,
    model: ModelConfig,
    optim: AdamWConfig,
    data: DataConfig,
    duration: Duration,
    checkpoint: CheckpointerConfig,
    stop: Duration | None = None,
    checkpointing: FullCheckpointing | None = None,
) -> Recipe:
    """Return the common settings: 2,000 warm-up steps, a cosine to a tenth, z-loss 1e-5 and bfloat16."""
    return Recipe(
        name=name,
        model=model,
        data=data,
        duration=duration,
        stop=stop,
        optim=optim,
        schedule=CosineConfig(warmup=Duration.steps(2000), final=0.1),
        loss=LossConfig(z_loss=1e-5),
        parallel=ParallelConfig(data="fsdp", precision="bfloat16", compile=True, checkpointing=checkpointing),
        checkpoint=checkpoint,
        seed=SEED,
    )
