from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.train.data.corpora import VOCAB, make_config, make_folder
from windlass.core.errors import SpecError
from windlass.train.data.build import build_loader
from windlass.train.data.config import DataConfig, SourceConfig, TokenizerConfig
from windlass.train.data.facts import describe
from windlass.train.data.protocol import Share
from windlass.train.data.tokenization.ingestion import ingest


def test_counts_are_those_of_the_loader(tmp_path: Path) -> None:
    first, second = make_folder(tmp_path / "a", [9] * 30), make_folder(tmp_path / "b", [5] * 10)
    sources = (SourceConfig(path=(str(first),), ratio=3), SourceConfig(path=(str(second),), ratio=1))
    config = make_config(sources=sources, batch_tokens=32)
    facts = describe(config, vocab_size=VOCAB)
    loader = build_loader(config, seed=0, share=Share(), vocab_size=VOCAB)
    assert facts.is_exact
    assert facts.tokens == 320
    assert [source.rows for source in facts.sources] == [33, 6]
    assert [source.rows_per_epoch for source in facts.sources] == [29, 10]
    assert facts.sources[1].repeats == pytest.approx(10 / 6)
    assert facts.sources[1].share == pytest.approx(10 / 39)
    assert facts.sources[0].max_id == 240
    assert facts.rows_per_epoch == loader.rows_per_epoch == 39
    assert facts.tokens_per_epoch == 39 * 8
    assert facts.batches_per_epoch == loader.batches_per_epoch == 9


def test_text_is_estimated_until_it_is_tokenised(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefgh" * 10)
    tokenizer = TokenizerConfig(path="bytes")
    source = SourceConfig(path=(str(tmp_path / "a.txt"),))
    config = DataConfig(
        sources=(source,), tokenizer=tokenizer, sequence_length=8, batch_tokens=8, cache=tmp_path / "cache"
    )
    before = describe(config, vocab_size=258)
    assert (before.is_exact, before.tokens, before.text_bytes) == (False, 80, 80)
    ingest(source, tokenizer, cache=tmp_path / "cache")
    after = describe(config, vocab_size=258)
    assert (after.is_exact, after.tokens, after.text_bytes) == (True, 81, 0)
    assert after.sources[0].documents == 1


def test_raw_files_count_by_their_size(tmp_path: Path) -> None:
    np.arange(50, dtype=np.uint16).tofile(tmp_path / "a.npy")
    facts = describe(make_config(tmp_path / "a.npy"), vocab_size=VOCAB)
    assert (facts.tokens, facts.rows_per_epoch, facts.sources[0].documents) == (50, 6, None)


def test_a_mixture_that_cannot_be_is_refused(tmp_path: Path) -> None:
    first, second = make_folder(tmp_path / "a", [9] * 30), make_folder(tmp_path / "b", [9])
    sources = (SourceConfig(path=(str(first),), ratio=1), SourceConfig(path=(str(second),), ratio=1))
    with pytest.raises(SpecError) as caught:
        describe(make_config(sources=sources), vocab_size=VOCAB)
    assert caught.value.code == "data-too-small"


def test_it_needs_neither_torch_nor_numpy(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefgh" * 10)
    program = f"""
import json, sys
from windlass.train import DataConfig, SourceConfig, TokenizerConfig
from windlass.train.data.facts import describe
source = SourceConfig(path=({str(tmp_path / "a.txt")!r},))
config = DataConfig(sources=(source,), tokenizer=TokenizerConfig(path="bytes"), sequence_length=8, batch_tokens=8)
describe(config, vocab_size=258)
print(json.dumps([name for name in ("torch", "numpy", "tokenizers") if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
