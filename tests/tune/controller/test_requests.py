from __future__ import annotations

from pathlib import Path

import pytest

from windlass.tune.controller.requests import ask, read_requests
from windlass.tune.folder import SweepFolder


def test_requests_come_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    assert read_requests(folder) == []
    ask(folder, "stop-trial", trial="00003")
    ask(folder, "stop-all")
    assert [(asked.what, asked.facts) for _, asked in read_requests(folder)] == [
        ("stop-trial", {"trial": "00003"}),
        ("stop-all", {}),
    ]


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"trial": "00001"}', '{"what": "stop-trial"}', '{"what": 3}'])
def test_a_file_that_holds_no_request_is_set_aside_and_ends_nothing(content: str, tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    ask(folder, "stop-all")
    damaged = folder.control / "1.json"
    damaged.write_text(content)
    assert [asked.what for _, asked in read_requests(folder)] == ["stop-all"]
    assert not damaged.exists()
    assert (folder.control / "1.damaged").read_text() == content
