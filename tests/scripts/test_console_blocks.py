from __future__ import annotations

from pathlib import Path

import pytest

from scripts import console_blocks


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(console_blocks, "ROOT", tmp_path)
    return tmp_path / "page.md"


def run(page: Path, *blocks: str) -> tuple[int, list[str]]:
    page.write_text("\n".join(f"Some words.\n\n```console exec\n{block}\n```\n" for block in blocks))
    return console_blocks.run_page(page)


def test_commands_that_print_what_is_shown(page: Path) -> None:
    assert run(page, "$ echo one\none\n$ true", "$ printf 'a\\nb\\nc\\n'\na\n...\nc") == (3, [])


def test_the_folder_is_kept_between_commands_and_blocks(page: Path) -> None:
    assert run(page, "$ mkdir inner && cd inner", "$ basename $PWD\ninner") == (2, [])


def test_other_output_is_a_problem_with_its_line(page: Path) -> None:
    assert run(page, "$ true\n$ echo two\none") == (2, ["page.md:5: `echo two` exited with 0 and printed:\ntwo"])


def test_a_failure_must_be_shown(page: Path) -> None:
    assert run(page, "$ echo no; exit 3\nno\n(exit 3)") == (1, [])
    assert run(page, "$ exit 3") == (1, ["page.md:4: `exit 3` exited with 3 and printed:\n"])
    assert run(page, "$ echo no\nno\n(exit 3)")[1] == ["page.md:4: `echo no` exited with 0 and printed:\nno"]


def test_a_command_over_two_lines(page: Path) -> None:
    assert run(page, "$ echo one \\\n>   two\none two") == (1, [])


def test_an_empty_line_within_a_command(page: Path) -> None:
    assert run(page, "$ cat <<END\n> one\n>\n> 2 > 1\n> END\none\n\n2 > 1") == (1, [])


def test_pages_have_a_home_of_their_own(page: Path) -> None:
    assert run(page, "$ test ! -e $WINDLASS_HOME && basename $WINDLASS_HOME\nhome") == (1, [])


def test_other_blocks_are_not_run(page: Path) -> None:
    page.write_text("```console\n$ exit 1\n```\n\n    $ exit 1\n")
    assert console_blocks.run_page(page) == (0, [])


def test_dots_alone_stand_for_any_lines_and_for_none() -> None:
    step = console_blocks.Step(command="x", line=1, shown=["one", "  place   here", "...", "last ... word"])
    assert step.matches("one\n  place   here\nlast    word\n")
    assert step.matches("one\n  place   here\nmore\nand more\nlast good word\n")
    assert not step.matches("one\nplace   here\nlast good word\n")
