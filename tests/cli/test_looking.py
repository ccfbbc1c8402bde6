"""The verbs that read, on runs whose journals were written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Windlass
from tests.runs.journals import RunScript
from windlass.cli.render.log_merge import merged_lines
from windlass.cli.render.made_from import code_text
from windlass.cli.render.verdict import next_step
from windlass.core.clock import FakeClock
from windlass.pin.code.pinned import CodePin
from windlass.plan.pins import Pins
from windlass.plan.plan import Plan
from windlass.record import events
from windlass.record.manifest import commit_manifest
from windlass.record.state import End
from windlass.runs.home import Home
from windlass.runs.logs import list_logs
from windlass.runs.store import RunFolder
from windlass.supervise.logs.index import IndexRecord, index_path

GOOD, BAD = "hello-aaaaaaaa", "hello-bbbbbbbb"


def write_log(run: RunFolder, attempt: int, rank: int, lines: list[tuple[float, str]], task: str = "train") -> None:
    """A log with an index that says when each line came."""
    path = run.logs / str(attempt) / task / f"{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    content, index = b"", b""
    for number, (at, text) in enumerate(lines):
        index += IndexRecord(len(content), number, int(at * 1e9)).pack()
        content += text.encode() + b"\n"
    path.write_bytes(content)
    index_path(path).write_bytes(index)


def good_run(home: Path) -> RunFolder:
    script = RunScript(Home(home), GOOD).submit().start()
    script.metric("loss", 10, 0.25).metric("accuracy", 10, 0.971667)
    script.job.append(events.CHECKPOINT, task="train", attempt=1, rank=0, path="/tmp/step-10", step=10, phase_s=0.1)
    script.clock.sleep(12.0)
    end = End("ok").to_data()
    script.job.append(events.ATTEMPT_ENDED, task="train", job=1, attempt=1, epoch=1, end=end)
    return script.end().close()


def bad_run(home: Path) -> RunFolder:
    script = RunScript(Home(home), BAD).submit().start()
    script.clock.sleep(3.0)
    traceback = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: lr must be positive'
    end = End("user-error", 1, 1, "node3", "exit code 1: ValueError: lr must be positive", ("last line",), traceback)
    script.job.append(events.ATTEMPT_ENDED, task="train", job=1, attempt=1, epoch=1, end=end.to_data())
    return script.end("failed", "user-error").close()


def test_ps_lists_the_newest_first_and_json_says_its_schema(windlass: Windlass, home: Path) -> None:
    assert windlass("ps").err == "no runs found; start one with `windlass launch FILE`\n"
    good_run(home)
    bad_run(home)
    lines = windlass("ps", "--all").out.splitlines()
    assert lines[0].split() == ["RUN", "STATE", "SITE", "SHAPE", "PROGRESS", "CREATED", "TOOK", "TRIES", "NOTE"]
    assert {tuple(line.split()[:2]) for line in lines[1:]} == {(GOOD, "succeeded"), (BAD, "failed")}
    content = json.loads(windlass("ps", "--json", "--state", "failed").out)
    assert content["schema"] == "windlass.ps/1"
    assert [(run["id"], run["cause"]) for run in content["runs"]] == [(BAD, "user-error")]
    assert windlass("ps", "--name", "other").err == "no runs found; start one with `windlass launch FILE`\n"


def test_ps_shows_what_fits_and_says_what_it_left_out(windlass: Windlass, home: Path) -> None:
    good_run(home)
    bad_run(home)
    result = windlass("ps", "--limit", "1")
    assert len(result.out.splitlines()) == 2
    assert result.err == "showing the newest 1; --all shows the rest\n"
    assert json.loads(windlass("ps", "--limit", "1", "--json").out)["is_complete"] is False
    assert json.loads(windlass("ps", "--json").out)["is_complete"] is True


def test_ps_shows_what_is_in_motion_however_old(windlass: Windlass, home: Path) -> None:
    RunScript(Home(home), "hello-cccccccc", FakeClock(1_000_000.0)).submit().start().close()
    for number in range(21):
        RunScript(Home(home), f"hello-{number:08d}", FakeClock(2_000_000.0 + number)).submit().end().close()
    listed = windlass("ps")
    names = [line.split()[0] for line in listed.out.splitlines()[1:]]
    assert names == [f"hello-{number:08d}" for number in range(20, 0, -1)] + ["hello-cccccccc"]
    assert listed.err.endswith("showing the newest 20; --all shows the rest\n")
    assert len(windlass("ps", "--state", "succeeded").out.splitlines()) == 21


def test_show_of_a_success(windlass: Windlass, home: Path) -> None:
    run = good_run(home)
    text = windlass("show", GOOD).out
    assert f"run          {GOOD}" in text
    assert "why          a test" in text
    assert "state        succeeded\n" in text
    assert "took         12s, 1 attempt" in text
    assert f"folder       {run.path}" in text
    assert "  checkpoint step 10  /tmp/step-10" in text
    assert "metrics      accuracy 0.971667 at step 10\n             loss 0.25 at step 10" in text
    assert "next" not in text


def test_files_that_match_the_checkpoint_pattern_are_shown_as_checkpoints(windlass: Windlass, home: Path) -> None:
    script = RunScript(Home(home), GOOD).submit().start()
    for name in ("checkpoint-900", "checkpoint-1000"):
        script.job.append(events.PROGRESS_ENTRY, task="train", attempt=1, path=name)
    script.clock.sleep(12.0)
    assert "step 1000" in windlass("ps").out
    end = End("killed", 137).to_data()
    script.job.append(events.ATTEMPT_ENDED, task="train", job=1, attempt=1, epoch=1, end=end)
    script.end("failed", "killed").close()
    text = windlass("show", GOOD).out
    assert "  checkpoint step 1000  checkpoint-1000\n" in text
    assert ", saved step 1000\n" in text
    task = json.loads(windlass("show", GOOD, "--json").out)["tasks"]["train"]
    assert task["checkpoint"] == {"step": 1000, "path": "checkpoint-1000"}


def test_show_of_a_failure_has_the_cause_the_traceback_and_the_next_step(windlass: Windlass, home: Path) -> None:
    bad_run(home)
    lines = windlass("show", "bbbb").out.splitlines()
    assert "state        failed: user-error" in lines
    at = lines.index(
        "failure      task train, attempt 1: user-error: rank 1 on node3, exit code 1: ValueError: lr must be positive"
    )
    assert lines.index("state        failed: user-error") < at < 5, "what matters comes first"
    assert lines[at + 1 : at + 4] == [
        f"next         fix the code, commit, and launch again; or, with the same code, `windlass retry {BAD}`",
        "more         windlass explain user-error",
        "",
    ]
    said = lines.index("log          Traceback (most recent call last):")
    assert lines[said + 1 : said + 3] == [
        '               File "train.py", line 3',
        "             ValueError: lr must be positive",
    ]


def test_show_says_what_the_run_was_made_from(windlass: Windlass, home: Path) -> None:
    code = CodePin(kind="in-place", commit="c" * 40, branch="main", is_dirty=True, dirty_files=("train.py",))
    plan = Plan(
        name="hello",
        overrides=("params.lr=2", "why=a b"),
        pins=Pins(code=code),
        experiment={"params": {"lr": 2, "model": {"dim": 8}}},
    )
    run = good_run(home)
    (run.path / "plan.json").write_text(json.dumps(plan.to_data()))
    text = windlass("show", GOOD).out
    assert f"code         in place, dirty: train.py; on commit {'c' * 12} (main)\n" in text
    assert "environment  none: the programs of the place\n" in text
    assert "overrides    params.lr=2 'why=a b'\n" in text
    assert "params       lr=2, model.dim=8\n" in text
    assert windlass("ps").out.splitlines()[1].endswith("params.lr=2 'why=a b'")


@pytest.mark.parametrize(
    ("pin", "text"),
    [
        (CodePin(kind="commit", commit="c" * 40, branch="main"), "commit cccccccccccc (main)"),
        (CodePin(kind="commit", commit="c" * 40), "commit cccccccccccc"),
        (
            CodePin(kind="snapshot", tree="7" * 40, base="c" * 40, dirty_files=tuple("abcdef")),
            "snapshot 777777777777, commit cccccccccccc with a, b, c, d, ...",
        ),
        (CodePin(kind="in-place"), "in place"),
        (CodePin(kind="none"), "none"),
    ],
)
def test_code_in_one_line(pin: CodePin, text: str) -> None:
    assert code_text(pin) == text


@pytest.mark.parametrize(
    ("state", "cause", "step"),
    [
        (
            "failed",
            "user-error",
            f"fix the code, commit, and launch again; or, with the same code, `windlass retry {BAD}`",
        ),
        ("failed", "out-of-memory", f"`windlass rerun {BAD} tasks.train.memory=...`"),
        ("failed", "timeout", f"`windlass rerun {BAD} limit.time=...`"),
        ("failed", "node-lost", f"windlass logs {BAD} | windlass retry {BAD} | windlass rerun {BAD}"),
        ("stopped", "cancelled", f"windlass resume {BAD}"),
        ("succeeded", "ok", ""),
    ],
)
def test_the_next_step_follows_from_the_cause(state: str, cause: str, step: str, home: Path) -> None:
    run = RunScript(Home(home), BAD).submit().start().end(state, cause).close()
    assert next_step(run.id, run.facts(), "train") == step


def test_ctrl_c_leaves_a_followed_run_alone(windlass: Windlass, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunScript(Home(home), GOOD).submit().start().close()

    def interrupt(*_arguments: object, **_settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("windlass.cli.verbs.look.logs._follow", interrupt)
    result = windlass("logs", GOOD, "--follow")
    assert result.code == 130
    assert result.err.endswith(f"{GOOD} continues: windlass logs {GOOD} --follow | windlass stop {GOOD}\n")


def test_show_json_holds_everything(windlass: Windlass, home: Path) -> None:
    bad_run(home)
    content = json.loads(windlass("show", BAD, "--json").out)
    assert (content["schema"], content["run"], content["state"], content["cause"]) == (
        "windlass.show/1",
        BAD,
        "failed",
        "user-error",
    )
    end = content["tasks"]["train"]["attempts"][0]["end"]
    assert (end["cause"], end["rank"], end["host"], end["tail"]) == ("user-error", 1, "node3", ["last line"])


def test_a_run_in_motion_that_cannot_be_looked_after_is_shown_all_the_same(windlass: Windlass, home: Path) -> None:
    RunScript(Home(home), GOOD).submit().start().close()
    result = windlass("show", GOOD)
    assert result.code == 0
    assert "state        running" in result.out
    assert f"note: {GOOD}: could not refresh its state" in result.err


def test_logs_of_one_replica_come_byte_for_byte(windlass: Windlass, home: Path) -> None:
    run = good_run(home)
    write_log(run, 1, 0, [(1.0, "one"), (2.0, "two \x1b[1mbold\x1b[0m")])
    assert windlass("logs", GOOD).out == "one\ntwo \x1b[1mbold\x1b[0m\n"


def test_logs_of_several_are_merged_in_time(windlass: Windlass, home: Path) -> None:
    run = good_run(home)
    write_log(run, 1, 0, [(1.0, "a1"), (3.0, "a3")])
    write_log(run, 1, 1, [(2.0, "b2"), (4.0, "b4")])
    expected = "train.0 | a1\ntrain.1 | b2\ntrain.0 | a3\ntrain.1 | b4\n"
    assert windlass("logs", GOOD).out == expected
    assert windlass("logs", GOOD, "--follow").out == expected
    lines = [json.loads(line) for line in windlass("logs", GOOD, "--json").out.splitlines()]
    assert lines[1] == {"schema": "windlass.logs/1", "task": "train", "rank": 1, "attempt": 1, "text": "b2"}


def test_logs_are_of_the_newest_attempt_unless_asked(windlass: Windlass, home: Path) -> None:
    run = good_run(home)
    write_log(run, 1, 0, [(1.0, "first try")])
    write_log(run, 2, 0, [(5.0, "second try")])
    shown = windlass("logs", GOOD)
    assert (shown.out, shown.err) == (
        "second try\n",
        f"-- attempt 2; for earlier ones: windlass logs {GOOD} --attempt all\n",
    )
    assert windlass("logs", GOOD, "--attempt", "2").err == ""
    assert windlass("logs", GOOD, "--attempt", "1").out == "first try\n"
    assert windlass("logs", GOOD, "--attempt", "all").out == "1/train.0 | first try\n2/train.0 | second try\n"
    assert (
        windlass("logs", GOOD, "--attempt", "all", "--since", "1970-01-01T00:00:04Z").out == "2/train.0 | second try\n"
    )


def test_a_clock_that_was_set_back_keeps_the_order_of_lines(home: Path) -> None:
    run = good_run(home)
    write_log(run, 1, 0, [(5.0, "a"), (1.0, "b"), (6.0, "c")])
    write_log(run, 1, 1, [(2.0, "x")])
    assert [text for _, text in merged_lines(list_logs(run))] == ["x", "a", "b", "c"]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--task", "trian"], f"run {GOOD} has no task `trian`", "did you mean `train`?"),
        (["--replica", "4"], f"run {GOOD} has no replica 4", "replicas are 0 to 0"),
        (["--attempt", "7"], f"run {GOOD} has no attempt 7", "its attempts: 1"),
    ],
)
def test_logs_that_are_not_there(arguments: list[str], message: str, hint: str, windlass: Windlass, home: Path) -> None:
    good_run(home)
    result = windlass("logs", GOOD, *arguments)
    assert (result.code, result.out) == (4, "")
    assert message in result.err
    assert f"hint: {hint}" in result.err


def test_no_log_yet_is_no_error(windlass: Windlass, home: Path) -> None:
    good_run(home)
    result = windlass("logs", GOOD)
    assert (result.code, result.out, result.err) == (0, "", f"{GOOD} has printed nothing yet; it is succeeded\n")
    assert windlass("logs", GOOD, "--attempt", "1").err == f"attempt 1 of {GOOD} printed nothing\n"


def test_diff_groups_by_cause(windlass: Windlass, home: Path) -> None:
    good_run(home)
    bad = bad_run(home)
    plan = {"experiment": {"params": {"lr": 3}}, "pins": {"code": {"commit": "c"}}}
    (bad.path / "plan.json").write_text(json.dumps(plan))
    text = windlass("diff", GOOD, BAD).out
    assert text.startswith(f"- {GOOD}\n+ {BAD}\n")
    assert text.index("code\n") < text.index("parameters\n")
    content = json.loads(windlass("diff", GOOD, BAD, "--json").out)
    assert content["schema"] == "windlass.diff/1"
    assert {change["cause"] for change in content["differences"]} == {"code", "parameters", "metrics"}
    assert windlass("diff", GOOD, GOOD).err == f"{GOOD} and {GOOD} have the same inputs\n"


def test_provenance_in_all_its_forms(windlass: Windlass, home: Path) -> None:
    run = good_run(home)
    lines = windlass("show", GOOD, "--provenance").out.splitlines()
    assert lines[0].split() == ["LINK", "WHAT", "DIGEST", "MORE"]
    assert [line.split()[0] for line in lines[1:]] == ["run", "task", "attempt"]
    content = json.loads(windlass("show", GOOD, "--provenance", "--json").out)
    assert (content["schema"], content["run"], content["record"]) == ("windlass.provenance/1", GOOD, None)
    assert content["edges"] == [["run", "task.train"], ["task.train", "attempt.train.1"]]
    assert windlass("show", GOOD, "--graph", "mermaid").out.startswith("flowchart LR\n")
    assert windlass("show", GOOD, "--provenance", "--graph", "svg").out.startswith("<svg ")
    (run.path / "provenance.json").write_text('{"base": "/x"}')
    assert json.loads(windlass("show", GOOD, "--provenance", "--json").out)["record"] == {"base": "/x"}
    result = windlass("show", GOOD, "--graph", "svg", "--json")
    assert (result.code, "are mutually exclusive" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--quick", "--on", "docker"), "`--on` has no effect with `--quick`, which executes nothing"),
        (("--quick", "params.lr=2"), "an override has no effect with `--quick`, which executes nothing"),
        (("--against", "last", "--on", "docker"), "`--on` has no effect with `--against`, which executes nothing"),
        (("--tolerance", "loss"), "invalid tolerance `loss`"),
    ],
)
def test_verify_refuses_what_has_no_effect(
    arguments: tuple[str, ...], message: str, windlass: Windlass, home: Path
) -> None:
    good_run(home)
    result = windlass("verify", GOOD, *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_verify_names_what_is_wrong(windlass: Windlass, home: Path) -> None:
    good_run(home)
    result = windlass("verify", GOOD)
    assert result.code == 1
    lines = [line.split(None, 2) for line in result.out.splitlines()]
    assert lines[0][:2] == ["ok", "journal"]
    assert lines[1][:2] == ["failed", "plan"]
    content = json.loads(windlass("verify", GOOD, "--json").out)
    assert content["schema"] == "windlass.verify/1"
    assert [check["status"] for check in content["checks"]] == ["ok", "failed"]
    assert (content["is_verified"], content["broken"], content["again"]) == (False, ["parameters"], "")
    assert windlass("verify", GOOD, "--quick").code == 1


def test_a_changed_checkpoint_is_found(tmp_path: Path, home: Path) -> None:
    from windlass.launcher.verify.verify import _checkpoint

    run, folder = good_run(home), tmp_path / "step-1"
    folder.mkdir()
    (folder / "state").write_text("weights")
    commit_manifest(folder, step=1)
    assert _checkpoint(run, "train", str(folder)).status == "ok"
    (folder / "state").write_text("weighty")
    found = _checkpoint(run, "train", str(folder))
    assert (found.status, found.message) == ("failed", "1 of its files differ\nstate: has other content (sha256)")
    assert found.files == ("state",)
    found = _checkpoint(run, "train", f"{tmp_path}/step-2")
    assert (found.status, found.message) == ("failed", f"{tmp_path}/step-2 is missing; it was the last committed one")


def plan_as(run: RunFolder, **fields: object) -> None:
    content = json.loads((run.path / "plan.json").read_text())
    (run.path / "plan.json").write_text(json.dumps({**content, **fields}))


def test_ps_shows_site_shape_and_progress(windlass: Windlass, home: Path) -> None:
    run = good_run(home)
    tasks = [{"name": "prep", "shape": {"nodes": 1, "gpus": 0}}, {"name": "train", "shape": {"nodes": 2, "gpus": 8}}]
    plan_as(run, site={"name": "lab", "partition": "gpu"}, tasks=tasks)
    line = windlass("ps").out.splitlines()[1]
    assert line.split()[:5] == [GOOD, "succeeded", "lab/gpu", "2x8", "gpu"]
    row = json.loads(windlass("ps", "--json").out)["runs"][0]
    assert (row["site"], row["shape"], row["progress"], row["sweep"]) == ("lab/gpu", "2x8 gpu", "", "")
    script = RunScript(Home(home), "later-bbbbbbbb").submit().start()
    script.job.append(events.CHECKPOINT, task="train", attempt=1, rank=0, path="/tmp/step-10", step=10, phase_s=0.1)
    script.close()
    rows = {row["id"]: row["progress"] for row in json.loads(windlass("ps", "--json").out)["runs"]}
    assert rows == {GOOD: "", "later-bbbbbbbb": "step 10"}
    plan_as(
        bad_run(home),
        site={"name": "local", "partition": ""},
        tasks=[{"name": "train", "shape": {"nodes": 1, "gpus": 0}}],
    )
    assert windlass("ps", "--state", "failed").out.splitlines()[1].split()[2:5] == ["local", "1", "cpu"]


def test_show_names_what_a_run_waits_for(windlass: Windlass, home: Path) -> None:
    script = RunScript(Home(home), "later-bbbbbbbb").submit().start()
    of: dict[str, Any] = {"task": "train", "attempt": 1, "rank": 0, "phase": "step"}
    what = "answers from worker 2"
    script.job.append(events.PROGRESS, **of, step=7, waits_for=what, since=1_700_000_000.0)
    page = windlass("show", "later-bbbbbbbb").out
    assert f"waits for  {what}, since 2023-11-1" in page
    task = json.loads(windlass("show", "later-bbbbbbbb", "--json").out)["tasks"]["train"]
    assert task["waits_for"] == {"what": what, "since": 1_700_000_000.0}
    script.clock.sleep(1.0)
    script.job.append(events.PROGRESS, **of, step=8)
    assert "waits for" not in windlass("show", "later-bbbbbbbb").out
    script.job.append(events.PROGRESS, **of, step=8, waits_for=7, since="x")  # damaged: never a traceback
    assert "waits for" not in windlass("show", "later-bbbbbbbb").out
    script.close()


def test_ps_folds_the_trials_of_a_sweep(windlass: Windlass, home: Path) -> None:
    for number in range(25):
        script = RunScript(Home(home), f"hello-{number:08d}", FakeClock(2_000_000.0 + number)).submit()
        run = (script if number == 3 else script.end()).close()
        plan_as(run, notes=[f"trial {number:05d} of sweep digits-7hq2mx4p"])
    RunScript(Home(home), "other-aaaaaaaa", FakeClock(1_000_000.0)).submit().end().close()
    done = windlass("ps")
    lines = done.out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["digits-7hq2mx4p", "other-aaaaaaaa"]
    assert "24/25 trials" in lines[0]
    assert "24 succeeded, 1 queued; windlass sweep show digits-7hq2mx4p" in lines[0]
    assert len(windlass("ps", "--trials", "--all").out.splitlines()) == 27
    assert len(json.loads(windlass("ps", "--all", "--json").out)["runs"]) == 26
