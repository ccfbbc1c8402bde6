"""`windlass train --from-open-instruct`: what it prints is a recipe that `windlass train` reads."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Windlass
from tests.post.open_instruct.test_convert import GRPO, LINES, without
from windlass.post.open_instruct.convert import convert_line


def test_the_printed_recipe_is_one_that_train_reads(windlass: Windlass, tmp_path: Path) -> None:
    for number, published in enumerate(LINES):
        line = without(published["line"].replace("\\\n", " "), published["refused"])
        kind = convert_line(line).recipe
        printed = windlass("train", kind, "--from-open-instruct", line)
        assert printed.code == 0, printed.err
        assert all(note.startswith("note: ") for note in printed.err.splitlines() if not note.startswith(" "))
        (tmp_path / f"{number}.yaml").write_text(printed.out)
        again = windlass("train", str(tmp_path / f"{number}.yaml"), "--dry-run")
        assert (again.code, again.err) == (0, "")


def test_the_recipe_must_be_the_one_of_the_line(windlass: Windlass) -> None:
    result = windlass("train", "sft", "--from-open-instruct", GRPO)
    assert result.code == 2
    assert "recipe of `grpo`, not of `sft`" in result.err
    assert windlass("train", "--from-open-instruct", GRPO, "seed=7").out.count("seed: 7") == 1
