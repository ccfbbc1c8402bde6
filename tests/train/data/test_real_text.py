"""Real text, from end to end: what the model gets is what the files say."""

from __future__ import annotations

import os
import sysconfig
from itertools import islice
from pathlib import Path

from windlass.train.data.build import build_loader
from windlass.train.data.config import DataConfig, SourceConfig, TokenizerConfig
from windlass.train.data.protocol import Share


def real_text() -> list[Path]:
    """Tinyshakespeare where the machine has it, else some sources of the standard library."""
    folder = os.environ.get("WINDLASS_TEST_DATA", "")
    found = sorted(Path(folder).rglob("*shakespeare*.txt")) if folder else []
    return found[:1] or sorted(Path(sysconfig.get_paths()["stdlib"]).glob("s*.py"))[:12]


def test_rows_hold_the_text(tmp_path: Path) -> None:
    paths = real_text()
    config = DataConfig(
        sources=(SourceConfig(path=tuple(map(str, paths))),),
        tokenizer=TokenizerConfig(path="bytes"),
        sequence_length=256,
        batch_tokens=4096,
        cache=tmp_path,
        is_shuffled=False,
    )
    loader = build_loader(config, seed=0, share=Share(), vocab_size=258)
    batches = iter(loader)
    found = [row for batch in islice(batches, loader.batches_per_epoch) for row in batch.tokens_BT.tolist()]
    batches.close()  # type: ignore[attr-defined]
    tokens = [token for path in paths for token in [*path.read_bytes(), 256]]
    assert len(found) == len(tokens) // 4096 * 16
    assert [token for row in found for token in row] == tokens[: len(found) * 256]
