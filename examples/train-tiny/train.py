"""A model of 1.3 million parameters learns to write the next byte; minutes on two cores."""

from windlass import train


def recipe() -> train.Recipe:
    """Bytes, six layers, loss on held-out text every 20 steps and at the end."""
    return train.Recipe(
        name="train-tiny",
        model=train.ModelConfig(
            d_model=128,
            num_layers=6,
            vocab_size=258,
            hidden=384,
            attention=train.AttentionConfig(num_heads=4),
            max_length=512,
            is_tied=True,
            family="llama",
        ),
        data=train.DataConfig(
            sources=(train.SourceConfig(path=("text/train.txt",)),),
            tokenizer=train.TokenizerConfig(path="bytes"),
            sequence_length=128,
            batch_tokens=4096,
        ),
        duration=train.Duration.steps(500),
        optim=train.AdamWConfig(lr=4e-3),
        schedule=train.CosineConfig(warmup=train.Duration.steps(20)),
        checkpoint=train.CheckpointerConfig(every=train.Duration.steps(20), keep=2),
        callbacks={
            "held-out": train.LMEvalConfig(
                sources={"held": train.SourceConfig(path=("text/held.txt",))},
                every=train.Duration.steps(20),
                max_tokens=16_384,
            ),
            "curve": train.JsonLinesConfig(),
        },
    )
