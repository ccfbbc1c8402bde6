from __future__ import annotations

import copy
import re
import struct
import sys
import xml.dom.minidom
from pathlib import Path

import pytest

from tests.tune.results.journals import Journal, asha_journal, pbt_journal, random_journal
from windlass.core.errors import PreconditionError, UsageError
from windlass.tune.pictures.drawing import KINDS, draw
from windlass.tune.pictures.rungs import rungs_of
from windlass.tune.pictures.schedule import segments_of
from windlass.tune.results import BestTrialError, MetricError

pytest.importorskip("matplotlib", reason="needs matplotlib: run the tests with `make test`")

HISTORIES = {"schedule": pbt_journal(), "pareto": random_journal(num_trials=20), "history": random_journal()}


def journal_of(kind: str) -> Journal:
    return HISTORIES.get(kind) or asha_journal()


@pytest.mark.parametrize("kind", KINDS)
def test_every_picture_is_the_same_twice_and_names_what_it_shows(kind: str, tmp_path: Path) -> None:
    history = journal_of(kind).history
    first = draw(history, kind, tmp_path / "one.svg").read_text()
    assert draw(history, kind, tmp_path / "two.svg").read_text() == first
    xml.dom.minidom.parseString(first)
    words = {"history": "loss", "curves": "training iteration", "parallel": "lr", "importance": "(%)", "rungs": "to",
             "schedule": "lr", "pareto": "less is better"}  # fmt: skip
    assert words[kind] in first
    assert "digits: " in first


@pytest.mark.parametrize("kind", ["rungs", "schedule"])
def test_a_page_needs_no_network_and_follows_light_and_dark(kind: str, tmp_path: Path) -> None:
    page = draw(journal_of(kind).history, kind, tmp_path / "page.html").read_text()
    drawing = page[page.index("<svg") : page.index("</svg>") + 6]
    xml.dom.minidom.parseString(drawing)
    assert set(re.findall(r"https?://[^\s\"']+", page)) <= {
        "http://www.w3.org/1999/xlink",
        "http://www.w3.org/2000/svg",
    }
    assert not re.search(r"(src|href)=\"(?!#)", page)
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"(fill|stroke): #(1c1c1c|ffffff)", drawing)
    tips = re.findall(r'"(trial-[^"]+)": "', page)
    assert len(tips) > 3
    assert all(f'id="{tip}"' in drawing for tip in tips)


def test_a_picture_is_a_png_of_its_size(tmp_path: Path) -> None:
    content = draw(asha_journal().history, "importance", tmp_path / "deep" / "importance.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width, _ = struct.unpack(">II", content[16:24])
    assert width == 8 * 144


def test_the_folder_of_a_sweep_will_do(tmp_path: Path) -> None:
    asha_journal().append(tmp_path / "sweep")
    assert draw(tmp_path / "sweep", "importance", tmp_path / "one.svg").exists()


def test_what_cannot_be_drawn_says_why(tmp_path: Path) -> None:
    history = asha_journal().history
    with pytest.raises(UsageError, match="'pie'") as caught:
        draw(history, "pie", tmp_path / "a.png")
    assert "curves" in caught.value.hint
    with pytest.raises(UsageError, match=r"'a\.gif' does not end in"):
        draw(history, "importance", tmp_path / "a.gif")
    with pytest.raises(BestTrialError, match="no trial was cloned") as none:
        draw(history, "schedule", tmp_path / "a.png")
    assert none.value.code == "sweep-no-best"
    with pytest.raises(MetricError, match="two metrics, not 1"):
        draw(history, "pareto", tmp_path / "a.png")
    with pytest.raises(BestTrialError, match="'los'") as wrong:
        draw(history, "curves", tmp_path / "a.png", metric="los")
    assert "accuracy" in wrong.value.hint
    with pytest.raises(BestTrialError):
        draw(Journal().history, "history", tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PreconditionError, match="need matplotlib") as caught:
        draw(asha_journal().history, "curves", tmp_path / "a.png")
    assert caught.value.hint == "pip install 'windlass[tune]'"


def test_rungs_are_where_the_scheduler_stopped_trials() -> None:
    assert set(rungs_of(asha_journal(num_trials=60).history)) <= {1, 3, 9}
    assert rungs_of(random_journal().history) == []


def test_the_stretches_of_a_schedule_cover_the_trial() -> None:
    history = pbt_journal().history
    for trial in history.trials.values():
        segments = segments_of(trial, "lr")
        assert segments[0][0] == 0
        assert segments[-1][1] == trial.iteration
        assert len(segments) == 1 + sum(made.decision == "exploit" for made in trial.decisions)


def test_odd_values_can_be_drawn(tmp_path: Path) -> None:
    """One trial, equal scores, missing and mixed parameters."""
    journal = Journal()
    for config in ({"x": 1}, {"x": "a", "y": None}, {"x": 2.5, "z": [1, 2]}, {"x": True}, {"x": 1}):
        trial = journal.suggest(config)
        journal.start(trial)
        journal.report(trial, 1, loss=1.0)
    for kind in ("history", "curves", "parallel", "rungs", "importance"):
        draw(journal.history, kind, tmp_path / f"{kind}.svg")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["names", "values"])
def test_no_label_is_cut_off_however_long_it_is(kind: str, where: str, tmp_path: Path) -> None:
    import matplotlib.image

    journal = copy.deepcopy(journal_of(kind))
    long = "/".join(["a-name-of-forty-letters-that-goes-on-and-on"] * (2 if where == "names" else 1))
    for record in journal.records:
        data = record.data
        if record.kind == "sweep-created":
            data["name"] = f"digits {long}"
        for drawn in (data, *(data.get("acts") or ())):
            for place in ("assigned", "config"):
                if drawn.get(place) and where == "names":
                    drawn[place] = {f"{long}/{name}": value for name, value in drawn[place].items()}
                elif drawn.get(place):
                    drawn[place] = {**drawn[place], "optimizer": f"{long} {len(str(drawn)) % 3}"}
    pixels = matplotlib.image.imread(draw(journal.history, kind, tmp_path / "one.png"))
    edges = (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])
    assert all((edge == pixels[0, 0]).all() for edge in edges)
