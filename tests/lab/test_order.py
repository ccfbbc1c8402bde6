from __future__ import annotations

from scripts.tree import ROOT
from tests.lab.order import SPLIT, WHOLE, long_first, unit_of


def test_listed_files_come_first_in_their_order_and_the_others_keep_theirs() -> None:
    names = ["tests/b.py::test_1", f"{WHOLE[0]}::test_1", "tests/a.py::test_1", f"{SPLIT[1]}::test_1", f"{SPLIT[0]}::x"]
    assert [names[place] for place in long_first(names)] == [names[4], names[3], names[1], names[0], names[2]]


def test_the_tests_of_a_split_file_go_to_workers_one_by_one() -> None:
    assert unit_of(f"{SPLIT[0]}::TestIt::test_1[a::b]") == f"{SPLIT[0]}::TestIt::test_1[a::b]"
    assert unit_of(f"{WHOLE[0]}::TestIt::test_1[a::b]") == WHOLE[0]


def test_listed_files_are_there_and_split_ones_share_no_fixture() -> None:
    assert [path for path in (*SPLIT, *WHOLE) if not (ROOT / path).exists()] == []
    assert len({*SPLIT, *WHOLE}) == len(SPLIT) + len(WHOLE)
    for path in SPLIT:
        text = (ROOT / path).read_text()
        assert 'scope="module"' not in text, path
        assert 'scope="class"' not in text, path
