"""What two runs differ in, with the files that only repositories and stores know."""

from __future__ import annotations

from pathlib import Path

from tests.launcher.bench import Bench
from windlass.launcher.data import Data
from windlass.launcher.verify.difference import explained


def test_data_of_the_store_is_told_file_by_file(bench: Bench, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    runs = []
    for texts in ({"a": "one", "b": "two"}, {"a": "one", "b": "three", "c": "new"}):
        for name, text in texts.items():
            (corpus / name).write_text(text)
        Data(home=bench.home).add(str(corpus), name="corpus")
        runs.append(bench.launch({"run": "cat ${data.corpus}/a", "data": {"corpus": "store:corpus"}}).folder)
    (found,) = explained(runs[0], runs[1], bench.home)
    assert (found.path, found.files, found.details) == ("data.corpus.digest", ("b", "c"), ("M b", "A c"))
