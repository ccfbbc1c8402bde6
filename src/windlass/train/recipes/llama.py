"""The model in the tutorial: a small Llama that one GPU trains in hours."""

from __future__ import annotations

from windlass.train.checkpoint.config import CheckpointerConfig
from windlass.train.data.config import DataConfig, SourceConfig, TokenizerConfig
from windlass.train.duration import Duration
from windlass.train.model.presets import preset
from windlass.train.optim.config import AdamWConfig, GroupConfig
from windlass.train.optim.schedule_config import CosineConfig
from windlass.train.parallel.config import ParallelConfig
from windlass.train.recipe import Recipe

__all__ = ["llama_271m"]


def llama_271m() -> Recipe:
    """Return a minimal recipe for a Llama on C4 with GPT-2's tokenizer, without evaluation.

    309 million parameters; 271 with the vocabulary of Llama 2, for which the size is named.

    A first run of minutes: `windlass train llama-271m data.sources.0.path='c4/*.npy' stop=100steps no_checkpoints=true`.
    Shards weights and computes in bfloat16, like the source; on one GPU nothing is sharded.

    Not included: the data (the source streams a hundredth of C4, already tokenised), its evaluations.

    Source: OLMo-core, `src/examples/llm/train.py` at commit 0356c1b (vocabulary padded to 50,304; 2,048 tokens a row;
    262,144 a batch; AdamW at 1e-3 with OLMo-core's defaults; 100 steps of warm-up; one epoch).
    """
    return Recipe(
        name="llama-271m",
        model=preset("llama2-271m", vocab_size=50_304),
        data=DataConfig(
            sources=(SourceConfig(path=("c4/*.npy",)),),
            tokenizer=TokenizerConfig(path="gpt2", eos_id=50_256, pad_id=50_256),
            sequence_length=2048,
            batch_tokens=256 * 1024,
            microbatch_tokens=16 * 1024,
        ),
        duration=Duration.epochs(1),
        optim=AdamWConfig(
            lr=1e-3,
            betas=(0.9, 0.999),
            weight_decay=0.01,
            groups=(GroupConfig(match=("embed.*",), weight_decay=0.0),),
        ),
        schedule=CosineConfig(warmup=Duration.steps(100)),
        parallel=ParallelConfig(data="fsdp", precision="bfloat16", compile=True),
        checkpoint=CheckpointerConfig(every=Duration.steps(1000), ephemeral_every=Duration.steps(100)),
        seed=12_536,
    )
