"""CSV, JSON and TensorBoard files: their form, and that a killed follower's successor makes the very same bytes."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.tune.results.journals import Journal, asha_journal, pbt_journal, random_journal
from windlass.core.clock import FakeClock
from windlass.core.errors import NotFoundError, UsageError
from windlass.tune.followers import following as following_module
from windlass.tune.followers.following import SweepFollower
from windlass.tune.followers.target import Target, make_target

TARGETS = ("csv", "json", "tensorboard")


class Killed(BaseException):
    """What SIGKILL is to a follower, in this process."""


class Mortal(SweepFollower):
    """Dies at its `death`-th write, half way through it."""

    death = 10**9

    def _write_note(self, position: int, sizes: dict[str, int]) -> None:
        type(self).death -= 1
        if type(self).death == 0:
            raise Killed
        super()._write_note(position, sizes)

    @classmethod
    def _append(cls, path: Path, content: bytes) -> None:
        cls.death -= 1
        if cls.death == 0:
            SweepFollower._append(path, content[: len(content) // 2])
            raise Killed
        SweepFollower._append(path, content)


def follow(folder: Path, name: str, **options: Any) -> None:
    SweepFollower(folder, make_target(name, {}), clock=FakeClock(), **options).run(follows=False)


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("trials/*/*"))}


def expected(tmp_path: Path, journal: Journal, name: str) -> dict[str, bytes]:
    folder = tmp_path / "undisturbed"
    journal.append(folder)
    follow(folder, name)
    return written(folder)


def test_csv_has_ray_s_columns_and_a_row_per_report(tmp_path: Path) -> None:
    random_journal().append(tmp_path)
    follow(tmp_path, "csv")
    with open(tmp_path / "trials/00001/progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["training_iteration"] for row in rows] == ["1", "2", "3"]
    assert list(rows[0])[:3] == ["loss", "eval/accuracy", "size"]
    assert {"trial_id", "date", "timestamp", "hostname", "pid", "node_ip", "done", "experiment_tag"} <= set(rows[0])
    assert not any(name.startswith("config") for name in rows[0])
    assert not (tmp_path / "trials/00006").exists()  # it never reported


def test_a_metric_that_comes_later_has_no_column(tmp_path: Path) -> None:
    journal = Journal()
    trial = journal.suggest({"lr": 0.1})
    journal.start(trial)
    journal.report(trial, 1, loss=1.0)
    journal.report(trial, 2, accuracy=0.5)
    journal.append(tmp_path)
    follow(tmp_path, "csv")
    with open(tmp_path / "trials/00000/progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["loss"] for row in rows] == ["1.0", ""]
    assert "accuracy" not in rows[1]


def test_json_has_the_result_and_the_newest_parameters(tmp_path: Path) -> None:
    journal = pbt_journal()
    journal.append(tmp_path)
    follow(tmp_path, "json")
    history = journal.history
    for trial in history.trials.values():
        assert json.loads((tmp_path / f"trials/{trial.id}/params.json").read_text()) == trial.config
        lines = [json.loads(line) for line in (tmp_path / f"trials/{trial.id}/result.json").read_text().splitlines()]
        assert [line["training_iteration"] for line in lines] == [report.iteration for report in trial.reports]
        assert [line["score"] for line in lines] == [report.metrics["score"] for report in trial.reports]
        assert lines[0]["config"] == journal.records[2 + trial.number].data["config"]


def test_tensorboard_files_are_read_by_tensorboardx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "torch" not in sys.modules:
        monkeypatch.setitem(sys.modules, "torch", None)  # it imports torch where it can, and needs seconds for it
    pytest.importorskip("tensorboardX", reason="needs tensorboardX: run the tests with `make test`")
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData
    from tensorboardX.record_writer import masked_crc32c

    journal = random_journal()
    journal.append(tmp_path)
    follow(tmp_path, "tensorboard")
    (path,) = (tmp_path / "trials/00005").glob("events.out.tfevents.*")
    content, events = path.read_bytes(), []
    while content:
        length = int.from_bytes(content[:8], "little")
        assert int.from_bytes(content[8:12], "little") == masked_crc32c(content[:8]), "the length's checksum"
        assert int.from_bytes(content[12 + length : 16 + length], "little") == masked_crc32c(content[12 : 12 + length])
        events.append(Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    assert events[0].file_version == "brain.Event:2"
    trial = journal.history.trials["00005"]
    scalars = [event for event in events[1:] if event.summary.value[0].tag.startswith("ray/tune/")]
    assert [event.step for event in scalars] == [1, 2, 3, 4]
    assert [event.wall_time for event in scalars] == [report.at for report in trial.reports]
    for event, report in zip(scalars, trial.reports, strict=True):
        values = {value.tag: value.simple_value for value in event.summary.value}
        assert values["ray/tune/loss"] == pytest.approx(report.metrics["loss"], rel=1e-6)
        assert "ray/tune/eval/accuracy" in values
        assert "ray/tune/pid" not in values
    plugins = {event.summary.value[0].tag: event.summary.value[0].metadata.plugin_data for event in events[-3:]}
    start = HParamsPluginData.FromString(plugins["_hparams_/session_start_info"].content).session_start_info
    assert start.hparams["lr"].number_value == trial.config["lr"]
    assert start.hparams["act"].string_value == "relu"
    assert start.group_name == "00005"
    experiment = HParamsPluginData.FromString(plugins["_hparams_/experiment"].content).experiment
    assert {info.name for info in experiment.hparam_infos} == {"lr", "model/layers", "act"}
    assert "ray/tune/loss" in {info.name.tag for info in experiment.metric_infos}
    end = HParamsPluginData.FromString(plugins["_hparams_/session_end_info"].content).session_end_info
    assert end.status == 2  # STATUS_FAILURE


@pytest.mark.parametrize("name", TARGETS)
def test_whoever_follows_piece_by_piece_writes_the_same(tmp_path: Path, name: str) -> None:
    journal, random = pbt_journal(), Random(3)
    whole = expected(tmp_path, pbt_journal(), name)
    folder = tmp_path / "pieces"
    while journal._num_written < len(journal.records):
        journal.append(folder, num_records=random.randint(1, 12))
        follow(folder, name)
    assert written(folder) == whole


@pytest.mark.parametrize("name", TARGETS)
def test_killed_at_every_write_each_report_is_there_once(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following_module, "_BATCH_BYTES", 4000)
    whole = expected(tmp_path, random_journal(), name)
    num_deaths = 0
    for death in range(1, 200):
        folder = tmp_path / f"killed-{death}"
        random_journal().append(folder)
        Mortal.death = death
        try:
            Mortal(folder, make_target(name, {}), clock=FakeClock()).run(follows=False)
        except Killed:
            num_deaths += 1
        else:
            break
        follow(folder, name)
        assert written(folder) == whole, f"killed at write {death}"
    assert num_deaths > 12


def test_a_journal_that_a_power_cut_took_back_is_written_anew(tmp_path: Path) -> None:
    journal = random_journal()
    journal.append(tmp_path)
    follow(tmp_path, "csv")
    other = random_journal(seed=9)
    (tmp_path / "journal/head.wj").unlink()
    other.append(tmp_path)
    follow(tmp_path, "csv")
    assert written(tmp_path) == expected(tmp_path / "x", random_journal(seed=9), "csv")


def test_a_file_that_lost_lines_is_written_anew(tmp_path: Path) -> None:
    journal = asha_journal()
    journal.append(tmp_path, num_records=40)
    follow(tmp_path, "json")
    note = json.loads((tmp_path / "followers/json.json").read_text())
    path = tmp_path / "trials/00000/result.json"
    note["sizes"] = {"trials/00000/result.json": path.stat().st_size}
    (tmp_path / "followers/json.json").write_text(json.dumps(note))
    path.write_bytes(path.read_bytes()[:-10])
    journal.append(tmp_path)
    follow(tmp_path, "json")
    assert written(tmp_path) == expected(tmp_path / "x", asha_journal(), "json")


def test_a_torn_tail_is_left_alone(tmp_path: Path) -> None:
    journal = random_journal()
    journal.append(tmp_path, num_records=20)
    path = tmp_path / "journal/head.wj"
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines(keepends=True)[-1][:-7])
    follow(tmp_path, "json")
    before = written(tmp_path)
    path.write_bytes(whole)
    journal.append(tmp_path)
    follow(tmp_path, "json")
    after = written(tmp_path)
    assert all(after[name].startswith(content) for name, content in before.items() if name.endswith("result.json"))
    assert after == expected(tmp_path / "x", random_journal(), "json")


def test_it_follows_until_the_sweep_ends(tmp_path: Path) -> None:
    journal = random_journal()

    class Growing(FakeClock):
        num_sleeps = 0

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            self.num_sleeps += 1
            journal.append(tmp_path, num_records=10)

    clock = Growing()
    journal.append(tmp_path, num_records=5)
    (tmp_path / "journal/head.json").write_text(json.dumps({"host": "elsewhere", "pid": 1}))
    SweepFollower(tmp_path, make_target("json", {}), clock=clock).run()
    assert clock.num_sleeps >= len(journal.records) // 10 - 1
    assert written(tmp_path) == expected(tmp_path / "x", random_journal(), "json")


def test_it_does_not_outlive_a_head_that_nobody_replaces(tmp_path: Path) -> None:
    random_journal().append(tmp_path, num_records=10)
    (tmp_path / "journal/head.json").write_text(json.dumps({"host": "elsewhere", "pid": 1}))
    clock = FakeClock()
    SweepFollower(tmp_path, make_target("json", {}), clock=clock, idle_s=30).run()
    assert 1030 < clock.monotonic() < 1032


def test_a_follower_of_a_sweep_that_is_asked_for_more_goes_on(tmp_path: Path) -> None:
    journal = random_journal()
    journal.append(tmp_path)
    follow(tmp_path, "json")
    journal.add("sweep-requested", what="extend", settings={"num_samples": 9}, space=None, stopper=None)
    trial = journal.suggest({"lr": 0.5})
    journal.start(trial)
    journal.report(trial, 1, loss=0.1)
    journal.append(tmp_path)
    follow(tmp_path, "json")
    assert b'"loss": 0.1' in written(tmp_path)["trials/00008/result.json"]


def test_what_cannot_be_followed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no sweep"):
        follow(tmp_path / "nothing", "csv")
    with pytest.raises(UsageError, match="'xml'") as caught:
        make_target("xml", {})
    assert "csv, json, tensorboard" in caught.value.hint
    with pytest.raises(UsageError, match="does not take"):
        make_target("csv", {"colour": "red"})


def test_targets_hear_of_ends_that_other_trials_caused(tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []

    class Listening(Target):
        name = "listening"

        def ended(self, trial: Any, *, is_failed: bool) -> None:
            heard.append((trial.id, "failed" if is_failed else "ended"))

    journal = Journal()
    for _ in range(2):
        journal.start(journal.suggest({"lr": 0.1}))
    journal.report("00000", 1, loss=1.0, decision="pause", by="scheduler", why="its turn")
    journal.end("00000", how="halted", status="PAUSED")
    journal.report("00001", 1, loss=2.0, acts=[{"act": "stop", "trial": "00000", "why": "halved"}])
    journal.end("00001", how="failed", status="ERROR", error="ValueError: no")
    journal.append(tmp_path)
    SweepFollower(tmp_path, Listening(), clock=FakeClock()).run(follows=False)
    assert heard == [("00000", "ended"), ("00001", "failed")]
