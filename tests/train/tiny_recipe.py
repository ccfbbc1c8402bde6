"""The smallest language model that is one, on text that is made on the spot."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch

from windlass import train
from windlass.train.callbacks.config import ConsoleConfig, SpeedConfig
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.checkpoint.config import CheckpointerConfig
from windlass.train.checkpoint.files import open_files
from windlass.train.checkpoint.layout import Box
from windlass.train.checkpoint.reading import CheckpointReader, tensors_by_name
from windlass.train.checkpoint.tensors import DTYPES
from windlass.train.optim.config import AdamWConfig
from windlass.train.optim.schedule_config import CosineConfig
from windlass.train.parallel.config import ParallelConfig

WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "he")


def write_text(path: Path, num_words: int = 4000) -> Path:
    """Sentences of few words, the same each time."""
    generator = random.Random(7)
    words = [generator.choice(WORDS) + ("." if generator.random() < 0.1 else "") for _ in range(num_words)]
    path.write_text(" ".join(words))
    return path


def tiny_recipe(
    folder: Path, *, steps: int = 8, parallel: ParallelConfig | None = None, **settings: Any
) -> train.Recipe:
    """Batches of 4 rows of 32 bytes; a checkpoint every second step, in `folder/checkpoints`."""
    text = folder / "text.txt"
    if not text.exists():
        write_text(text)
    settings.setdefault(
        "checkpoint", CheckpointerConfig(folder=str(folder / "checkpoints"), every=train.Duration.steps(2))
    )
    return train.Recipe(
        name="tiny",
        model=train.ModelConfig(
            d_model=32, num_layers=2, vocab_size=260, hidden=64, attention=train.AttentionConfig(num_heads=2)
        ),
        data=train.DataConfig(
            sources=(train.SourceConfig(path=(str(text),)),),
            tokenizer=train.TokenizerConfig(path="bytes"),
            sequence_length=32,
            batch_tokens=128,
            microbatch_tokens=settings.pop("microbatch_tokens", 32),
            cache=folder / "tokens",
        ),
        duration=train.Duration.steps(steps),
        optim=settings.pop("optim", AdamWConfig(lr=1e-2)),
        schedule=CosineConfig(warmup=train.Duration.steps(2)),
        parallel=parallel or ParallelConfig(),
        callbacks={"console": ConsoleConfig(enabled=False), "speed": SpeedConfig(enabled=False)},
        device="cpu",
        **settings,
    )


class RowLog(TrainerCallback):
    """Appends the rows of each step to a file for each process."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def on_step_start(self, batch: Any) -> None:
        trainer = self.trainer
        self.folder.mkdir(exist_ok=True)
        line = json.dumps([trainer.step + 1, trainer.world.share.rank, trainer.world.share.world, list(batch.rows)])
        with (self.folder / f"{trainer.world.rank}.jsonl").open("a") as file:
            file.write(line + "\n")


def rows_by_step(folder: Path, num_rows_step: int = 1) -> dict[int, list[int]]:
    """Rows of each step's global batch in its order, from all logs; the last time counts where a step came twice."""
    shares: dict[int, dict[int, tuple[int, list[int]]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            step, rank, world, rows = json.loads(line)
            shares.setdefault(step, {})[rank] = (world, rows)
    found: dict[int, list[int]] = {}
    for step, parts in sorted(shares.items()):
        lists = [parts[rank][1] for rank in range(parts[0][0])]
        starts = range(0, len(lists[0]), num_rows_step)
        found[step] = [row for start in starts for rows in lists for row in rows[start : start + num_rows_step]]
    return found


def tensors_of(checkpoint: Path) -> dict[str, bytes]:
    """The bytes of all tensors by name, whatever the number of processes that wrote them."""
    reader = CheckpointReader.open(open_files(str(checkpoint)))
    found: dict[str, bytes] = {}
    for (section, name), entry in tensors_by_name(reader.layout).items():
        whole = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        reader.fill(entry, Box.whole(entry.shape), whole)
        found[f"{section}.{name}"] = whole.numpy().tobytes()
    return found
