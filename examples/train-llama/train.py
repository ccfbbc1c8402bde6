"""A Llama of 271 million parameters, in the settings of a first run: no evaluation, no checkpoints, 100 steps.

Change what you like here, or on the command line: `windlass train train.py optim.lr=3e-4`.
"""

from __future__ import annotations

from windlass import train


def recipe() -> train.Recipe:
    return train.Recipe(
        name="llama-271m",
        model=train.preset("llama2-271m", vocab_size=50_304),
        data=train.DataConfig(
            sources=(train.SourceConfig(path=("corpus/*.jsonl",)),),
            tokenizer=train.TokenizerConfig(path="tokenizer.json"),
            sequence_length=2048,
            batch_tokens=256 * 1024,
            microbatch_tokens=16 * 1024,
        ),
        duration=train.Duration.epochs(1),
        stop=train.Duration.steps(100),
        optim=train.AdamWConfig(lr=1e-3),
        schedule=train.CosineConfig(warmup=train.Duration.steps(100)),
        parallel=train.ParallelConfig(data="fsdp", precision="bfloat16", compile=True),
        no_checkpoints=True,
        no_evals=True,
    )


def small() -> train.Recipe:
    """The same in a minute on two cores: a model of a million parameters reads bytes."""
    return train.Recipe(
        name="llama-1m",
        model=train.preset("llama-1m", vocab_size=258),
        data=train.DataConfig(
            sources=(train.SourceConfig(path=("corpus/*.txt",)),),
            tokenizer=train.TokenizerConfig(path="bytes"),
            sequence_length=128,
            batch_tokens=8 * 128,
        ),
        duration=train.Duration.steps(100),
        stop=train.Duration.steps(10),
        optim=train.AdamWConfig(lr=1e-3),
        schedule=train.CosineConfig(warmup=train.Duration.steps(10)),
        no_checkpoints=True,
    )
