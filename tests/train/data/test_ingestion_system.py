"""Real processes make tokens, are killed, and meet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from windlass.train.data.config import SourceConfig, TokenizerConfig
from windlass.train.data.manifest import check_files, read_manifest
from windlass.train.data.opening import open_corpus
from windlass.train.errors import TrainingError

pytestmark = pytest.mark.system

NUM_DOCUMENTS = 20_000

PROGRAM = """
import sys
from pathlib import Path
from windlass.train.data import ingest
from windlass.train.data.tokenization import tokenizing, units
from windlass.train import SourceConfig, TokenizerConfig
units._UNIT_BYTES = (1 << 16, 1 << 16)
tokenizing._ALONE_BYTES = 0
tell = lambda done, of: print(done, of, flush=True)
print(ingest(SourceConfig(path=(sys.argv[1],)), TokenizerConfig(path="bytes"), cache=Path(sys.argv[2]), num_workers=2, on_progress=tell))
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "a.jsonl"
    lines = (json.dumps({"text": f"{number} " + "x" * (number * 7919 % 120)}) for number in range(NUM_DOCUMENTS))
    path.write_text("\n".join(lines))
    return path


def start(text: Path, cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(text), str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def check(folder: Path) -> None:
    """Each document once, in order."""
    check_files(folder, read_manifest(folder), is_thorough=True)
    corpus = open_corpus(SourceConfig(path=(str(folder),)), TokenizerConfig(path="bytes"), vocab_size=258)
    tokens_T: np.ndarray = np.empty(corpus.num_tokens, dtype=np.int64)
    corpus.read(0, tokens_T)
    found = [bytes(part[:-1].tolist()).decode() for part in np.split(tokens_T, corpus.ends)[:-1]]
    assert found == [f"{number} " + "x" * (number * 7919 % 120) for number in range(NUM_DOCUMENTS)]


def test_killed_at_any_unit_nothing_is_lost_or_doubled(text: Path, tmp_path: Path) -> None:
    for units in (0, 2, 9):
        child = start(text, tmp_path)
        assert child.stdout is not None
        for _ in range(units):
            child.stdout.readline()
        child.kill()
        child.wait()
        child.stdout.close()
        assert not list(tmp_path.glob("*/manifest.json"))
    done, _ = start(text, tmp_path).communicate(timeout=300)
    *told, folder = done.split("\n")[:-1]
    first, size = map(int, told[0].split())
    assert len(told) < size / (1 << 16) - 9  # eleven were done before
    assert first > 10 << 16
    check(Path(folder))


def test_two_at_once_make_it_once(text: Path, tmp_path: Path) -> None:
    children = [start(text, tmp_path), start(text, tmp_path)]
    lines = [child.communicate(timeout=300)[0].split("\n")[:-1] for child in children]
    assert lines[0][-1] == lines[1][-1]
    assert min(len(said) for said in lines) == 1  # one of them only waited
    check(Path(lines[0][-1]))


def test_an_error_of_a_worker_is_the_error_of_the_call(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from windlass.train.data.tokenization import tokenizing, units
    from windlass.train.data.tokenization.ingestion import ingest

    monkeypatch.setattr(units, "_UNIT_BYTES", (1 << 16, 1 << 16))
    monkeypatch.setattr(tokenizing, "_ALONE_BYTES", 0)
    broken = tmp_path / "b.jsonl"
    broken.write_text(text.read_text() + "\n{broken\n")
    source = SourceConfig(path=(str(broken),))
    with pytest.raises(TrainingError) as caught:
        ingest(source, TokenizerConfig(path="bytes"), cache=tmp_path / "cache", num_workers=2)
    assert caught.value.message.startswith(f"{broken}:{NUM_DOCUMENTS + 1} is not valid JSON")
    monkeypatch.setattr(tokenizing, "_PROGRAM", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(TrainingError) as caught:
        ingest(source, TokenizerConfig(path="bytes"), cache=tmp_path / "another", num_workers=2)
    assert caught.value.code == "worker-failed"
    assert "exited with code -9" in caught.value.message
