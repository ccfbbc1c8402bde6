"""Mid-training and long-context extension of OLMo 2 and OLMo 3 with the published settings, as data.

Read in November 2026.

Each begins with the weights and, for OLMo 3, the optimiser's state of the stage before, at step 1 of a schedule of its own.
`checkpoint.load.path` of an OLMo 3 recipe is the place where you put that checkpoint of OLMo-core; the docstring names the
published one, below https://olmo-checkpoints.org/ai2-llm/. To begin with weights alone:
`checkpoint.load.path=hf:FOLDER checkpoint.load.optim=false`. Starting without a checkpoint is an error.

The token files of the OLMo 3 mixes are public (https://olmo-data.org, listed in `olmo_core/data/mixes` of ai2-olmo-core
3.0.0). A recipe does not hold the list: give `data.sources`. What no recipe here includes: evaluations, the average of
several runs, and the filter of some sources that leaves out rows with long repetitions (period 1 to 13, 32 times or more).
As in `olmo`, weights are sharded over all processes; add `parallel.data=hsdp parallel.replicas=N` for N groups.

Not shipped because a number is not public: mid-training of OLMo 2 32B (its script takes the learning rate from a checkpoint).
"""

from __future__ import annotations

from dataclasses import replace

from windlass.train.checkpoint.config import CheckpointerConfig, LoadConfig
from windlass.train.data.config import DataConfig
from windlass.train.duration import Duration
from windlass.train.model.config import ModelConfig
from windlass.train.model.presets import preset
from windlass.train.optim.config import AdamWConfig, LossConfig
from windlass.train.optim.schedule_config import LinearConfig
from windlass.train.parallel.config import BudgetCheckpointing, ParallelConfig, SelectiveCheckpointing
from windlass.train.recipe import Recipe
from windlass.train.recipes.olmo_shared import SEED, VOCABULARY, adamw, token_data

__all__ = [
    "olmo2_7b_midtraining",
    "olmo3_7b_long_context",
    "olmo3_7b_midtraining",
    "olmo3_32b_long_context",
    "olmo3_32b_midtraining",
]


def olmo2_7b_midtraining() -> Recipe:
    """Return the recipe for OLMo 2 7B, stage 2: 50 billion tokens from step 928,646 of stage 1 on.

    The learning rate falls from 6.1499e-5 to zero.

    The published model is the average of three such runs, with `seed` and `data.seed` 42 (this one), 42069 and 666.

    What differs: the source is a run of the older OLMo trainer, which orders rows in another way and whose optimiser's state
    cannot be read here, so the moments of AdamW begin at zero. Its ten last steps, at a rate of zero, are left out. The token
    files are listed in the source.

    Source: allenai/OLMo, `configs/official-1124/OLMo2-7B-stage2-seed42.yaml` at commit 32f934f, and
    `OLMo2-7B-stage2-seed666.yaml` beside it at commit 0b2e7db.
    """
    return _stage(
        "olmo2-7b-midtraining",
        model=preset("olmo2-7b", vocab_size=VOCABULARY),
        optim=replace(adamw(lr=6.1499e-5), skip=None),  # the older trainer does not skip steps
        data=token_data(sequence_length=4096, rows=1024, rows_at_once=2, seed=42),
        duration=Duration.tokens(50 * 10**9),
        checkpoint=CheckpointerConfig(
            every=Duration.steps(1000),
            ephemeral_every=Duration.steps(250),
            load=LoadConfig(
                path="hf:allenai/OLMo-2-1124-7B@stage1-step928646-tokens3896B",
                strategy="always",
                optim=False,
                trainer=False,
            ),
        ),
        parallel=_parallel(),
        seed=42,
    )


def olmo3_7b_midtraining() -> Recipe:
    """Return the recipe for OLMo 3 7B, stage 2: 100 billion tokens from step 1,413,814 of stage 1 on.

    The learning rate falls from 2.07e-4 to zero.

    Begins with: `Olmo-3-1025-7B/stage1/step1413814`. Mix: `OLMo-midtraining-mix-0625-100B` (so the README and ai2-olmo-core
    3.0.0; the script at this commit says 0725). Published on 128 H100s.

    What differs: the source computes the feed-forward layers again in the backward pass; here it is every operation but
    attention and each second matrix product (`selective`). The results are the same, the memory is not.

    Source: OLMo-core, `src/scripts/official/OLMo3/OLMo-3-1025-7B-midtrain.py` at commit 60f7eb8, and the README beside it
    at commit 7e0431f.
    """
    return _stage(
        "olmo3-7b-midtraining",
        model=preset("olmo3-7b", vocab_size=VOCABULARY),
        optim=adamw(lr=0.00020712352850360292),
        data=token_data(sequence_length=8192, rows=256, rows_at_once=2, seed=1337),
        duration=Duration.tokens(100 * 10**9),
        checkpoint=replace(_saved("olmo3-7b/stage1/step1413814"), ephemeral_every=Duration.steps(100)),
        parallel=_parallel(SelectiveCheckpointing()),
        seed=1337,
    )


def olmo3_7b_long_context() -> Recipe:
    """Return the recipe for OLMo 3 7B, stage 3: rows of 65,536 tokens, YaRN with factor 8, 50 billion tokens.

    The learning rate rises to 2.07e-4 in 200 steps of warm-up.

    YaRN is on the layers without a window only (each fourth): old length 8,192, beta 32 and 1. Documents are packed whole,
    longer ones are cut at the end of the row, and tokens see their own document only. Begins with:
    `Olmo-3-1025-7B/stage2/step47684`. Mix: `OLMo-longmino-mix-0625`. Published on 256 H100s, eight of them for each row.

    What differs: the source computes in float8, which this leaves out because it was not tried on hardware here
    (`parallel.float8.recipe=tensorwise` adds it), and packs documents of eight files at a time.

    Its length is from the README and the list of checkpoints (the last is step 11,921): the script at this commit still holds
    that of pre-training. `data.seed` is the script's; the script of its development
    (`src/scripts/train/OLMo3/OLMo3-7B-long-context.py`) has 4123 for it and for `seed`.

    Source: OLMo-core, `src/scripts/official/OLMo3/OLMo-3-1025-7B-long-context.py` at commit 138b1fc, the README beside it
    at commit 7e0431f, `OLMo-3-1025-7B.csv` at commit 0b95421; layers with YaRN: `with_rope_scaling` of ai2-olmo-core 3.0.0.
    """
    return _stage(
        "olmo3-7b-long-context",
        model=preset("olmo3-7b-64k", vocab_size=VOCABULARY),
        optim=adamw(lr=0.00020712352850360292),
        data=_long_rows(64),
        duration=Duration.tokens(50 * 10**9),
        warmup=200,
        checkpoint=_saved("olmo3-7b/stage2/step47684"),
        parallel=replace(_parallel(), context=8),
    )


def olmo3_32b_midtraining() -> Recipe:
    """Return the recipe for OLMo 3 32B, stage 2: 100 billion tokens from step 656,000 of stage 1 on.

    The learning rate falls from 2.07e-4 to zero.

    The published model is the average of two such runs, on `OLMo-midtraining-mix-0925-ingredient1-100B` and
    `...-ingredient2-100B`; both scripts have the same data seed. Begins with: `stego32-highlr-filter3/step656000`.
    Published on 512 H100s.

    Source: OLMo-core, `src/scripts/official/OLMo3/OLMo-3-1025-32B-midtrain-ingredient-1.py` and `...-ingredient-2.py` at
    commit 138b1fc, and the README beside them at commit 7e0431f.
    """
    return _stage(
        "olmo3-32b-midtraining",
        model=preset("olmo3-32b", vocab_size=VOCABULARY),
        optim=adamw(lr=0.0002071235285),
        data=token_data(sequence_length=8192, rows=512, rows_at_once=1, seed=42_069),
        duration=Duration.tokens(100 * 10**9),
        checkpoint=_saved("olmo3-32b/stage1/step656000"),
        parallel=_parallel(BudgetCheckpointing(share=0.5)),
    )


def olmo3_32b_long_context() -> Recipe:
    """Return the recipe for OLMo 3 32B, stage 3: rows of 65,536 tokens, YaRN with factor 8, 100 billion tokens.

    The learning rate rises to 2.07e-4 in 200 steps of warm-up.

    Positions, packing and masks are those of `olmo3_7b_long_context`. Begins with the average of the two runs of stage 2,
    `stego32-highlr-filter3/stage2/souped/stage2-ingredient1+2-step23842`: so the README and the list of checkpoints; the
    script at this commit names the end of stage 1 and has the average in a comment. Mix: `OLMo-longmino-mix-0925`. The
    published model is the average of steps 10,000, 11,000 and 11,921. Published on 1,024 H100s, eight of them for each row.

    Source: OLMo-core, `src/scripts/official/OLMo3/OLMo-3-1025-32B-long-context.py` at commit 00e2b7b, the README beside it at
    commit 7e0431f, and `OLMo-3-1025-32B.csv` at commit 0b95421.
    """
    return _stage(
        "olmo3-32b-long-context",
        model=preset("olmo3-32b-64k", vocab_size=VOCABULARY),
        optim=adamw(lr=0.0002071235285),
        data=_long_rows(128),
        duration=Duration.tokens(100 * 10**9),
        warmup=200,
        checkpoint=_saved("olmo3-32b/stage2/souped-step23842"),
        parallel=replace(_parallel(BudgetCheckpointing(share=0.3)), context=8),
    )


def _stage(
    name: str,
    *,
    model: ModelConfig,
    optim: AdamWConfig,
    data: DataConfig,
    duration: Duration,
    checkpoint: CheckpointerConfig,
    parallel: ParallelConfig,
    warmup: int = 0,
    seed: int = SEED,
) -> Recipe:
    """Return a recipe with the common settings: linear decay to zero and z-loss 1e-5."""
    return Recipe(
        name=name,
        model=model,
        data=data,
        duration=duration,
        optim=optim,
        schedule=LinearConfig(warmup=Duration.steps(warmup), final=0.0),
        loss=LossConfig(z_loss=1e-5),
        parallel=parallel,
        checkpoint=checkpoint,
        seed=seed,
    )


def _parallel(checkpointing: SelectiveCheckpointing | BudgetCheckpointing | None = None) -> ParallelConfig:
    return ParallelConfig(data="fsdp", precision="bfloat16", compile=True, checkpointing=checkpointing)


def _saved(begin: str) -> CheckpointerConfig:
    """Return settings for a checkpoint every 1,000 steps, starting from the weights and optimizer state in `begin`."""
    load = LoadConfig(path=begin, strategy="always", optim=True, trainer=False)
    return CheckpointerConfig(every=Duration.steps(1000), is_async=False, load=load)


def _long_rows(rows: int) -> DataConfig:
    """Return data settings for whole documents packed into rows of 65,536 tokens."""
    data = token_data(sequence_length=65_536, rows=rows, rows_at_once=1)
    return replace(data, layout="pack", long_documents="truncate", mask_documents=True)
