"""What the backend makes of Slurm's answers: submissions whose replies are lost, the queue, accounting, silence."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.backends.slurm.dressing import lab_profile
from tests.backends.slurm.fake_shell import FakeShell, Reply, listing
from tests.backends.slurm.test_render import ARCHIVE, document
from windlass.backends import JobState, Rendered, Submission
from windlass.backends.site_shell import ShellResult
from windlass.backends.slurm.backend import SlurmBackend
from windlass.backends.slurm.client import completion_file
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.supervise.job import JobDocument, TaskSettings
from windlass.supervise.slurm.scheduler import mark_of

MARK = mark_of("secret-token")
DOWN = ShellResult(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
NOBODY = ShellResult(
    1, "", "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n"
)
REFUSED = ShellResult(
    1,
    "",
    "sbatch: error: invalid partition specified: main\nsbatch: error: Batch job submission failed: Invalid partition name specified\n",
)
NONE = listing()


def row(number: str, link: int, state: str, reason: str = "None", nodes: str = "", start: str = "N/A") -> list[str]:
    return [number, state, reason, start, "N/A", nodes, "demo-1a2b3c4d.train.1", f"windlass:{MARK}.{link}"]


class Site:
    """A backend at a site whose programs answer what a test says."""

    def __init__(self, tmp_path: Path, **scheduler: Any) -> None:
        self.folder = tmp_path / "jobs" / "train-1"
        nothing = ShellResult(0, "", "")
        self.shell = FakeShell(
            f"site-{tmp_path}", sbatch=Numbers(), squeue=NONE, scancel=nothing, scontrol=nothing, sh=nothing
        )
        self.backend = SlurmBackend(lab_profile(**scheduler), shell=self.shell)

    def answers(self, **replies: Reply) -> None:
        self.shell.replies.update(replies)

    def rendered(self, num_queued: int = 1) -> Rendered:
        return self.backend.render(document(num_queued=num_queued), self.folder, ARCHIVE)

    def submit(self, num_queued: int = 1) -> Submission:
        return self.backend.submit(self.rendered(num_queued))

    def seen(self, job: Submission) -> tuple[JobState, str, str]:
        found = self.backend.observe([job])[job.backend_id]
        return found.state, found.cause, found.detail


class Numbers:
    """Takes every submission and gives ids from 11 on."""

    def __init__(self) -> None:
        self.next = 11

    def __call__(self, argv: Sequence[str]) -> ShellResult:
        self.next += 1
        return ShellResult(0, f"{self.next - 1};lab\n", "")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# --- submit ----------------------------------------------------------------------------------------------------------


def test_a_submission_asks_sbatch_once_for_each_link_and_nothing_else(site: Site) -> None:
    found = site.submit(num_queued=2)
    assert (found.backend_id, found.locator) == ("11", f"slurm://lab/11#{MARK}")
    assert [argv[0] for argv in site.shell.asked] == ["sbatch", "sbatch"]
    assert [argv[-1] for argv in site.shell.asked] == ["1", "2"]
    assert site.submit(num_queued=2) == found
    assert site.shell.count("sbatch") == 2


@pytest.mark.parametrize("mode", ["successor", "requeue"])
@pytest.mark.parametrize("queue", [{}, {"hold": True}, {"build_job": "7"}, {"hold": True, "build_job": "7"}])
def test_what_is_asked_is_what_was_rendered(site: Site, mode: str, queue: dict[str, Any]) -> None:
    job = document(num_queued=2, **queue)
    job = dataclasses.replace(job, chain=dataclasses.replace(job.chain, mode=mode))
    rendered = site.backend.render(job, site.folder, ARCHIVE)
    site.backend.submit(rendered)
    first, second = site.shell.asked
    assert first == rendered.argv
    assert ("--hold" in first) is bool(queue.get("hold"))
    waits = [option for option in first if option.startswith("--dependency=")]
    others = "singleton," if mode == "successor" else ""
    assert waits == ([f"--dependency={others}afterany:7"] if "build_job" in queue else [])
    assert second == tuple(
        part.replace("${link}", "2") for part in JobDocument.read(site.folder / "job.json").chain.submit
    )


def test_a_job_that_another_machine_began_is_looked_for_first(site: Site) -> None:
    site.folder.mkdir(parents=True)
    (site.folder / "job.json").write_text(site.rendered().files["job.json"])
    site.answers(squeue=listing(row("9", 1, "PENDING")))
    assert site.submit().backend_id == "9"
    assert site.shell.count("sbatch") == 0


def test_a_job_that_nobody_queued_although_its_folder_is_there_is_queued_after_the_guard(tmp_path: Path) -> None:
    site = Site(tmp_path, submit_guard=("quota-left",))
    site.answers(**{"quota-left": ShellResult(0, "", "")})
    (site.folder / "logs").mkdir(parents=True)
    assert site.submit().backend_id == "11"
    assert [Path(argv[0]).name for argv in site.shell.asked] == ["squeue", "scontrol", "quota-left", "sbatch"]


def test_a_lost_reply_is_found_in_the_queue(site: Site) -> None:
    site.answers(sbatch=UnreachableError("the network went away"))
    with pytest.raises(UnreachableError):
        site.submit()
    site.answers(sbatch=Numbers(), squeue=listing(row("9", 1, "PENDING")))
    assert site.submit().backend_id == "9"
    assert site.shell.count("sbatch") == 1


def test_a_request_that_never_arrived_is_made_again(site: Site) -> None:
    site.answers(sbatch=NOBODY)
    with pytest.raises(UnreachableError, match="does not respond"):
        site.submit()
    site.answers(sbatch=Numbers())
    assert site.submit().backend_id == "11"


def test_while_nobody_knows_nothing_is_submitted_again(site: Site) -> None:
    site.answers(sbatch=NOBODY)
    with pytest.raises(UnreachableError):
        site.submit()
    site.answers(sbatch=Numbers(), squeue=DOWN)
    with pytest.raises(UnreachableError):
        site.submit()
    assert site.shell.count("sbatch") == 1


def test_a_job_that_began_and_was_forgotten_by_slurm_is_found_in_its_folder(site: Site) -> None:
    site.answers(sbatch=NOBODY)
    with pytest.raises(UnreachableError):
        site.submit()
    (site.folder / "link-1.json").write_text(json.dumps({"id": "9", "host": "n1", "at": 0.0}))
    assert site.submit(num_queued=2).backend_id == "9"
    assert site.shell.count("sbatch") == 1


def test_a_job_that_ended_is_found_in_accounting(tmp_path: Path) -> None:
    site = Site(tmp_path, has_accounting=True)
    site.answers(sbatch=NOBODY, sacct=ShellResult(0, "9|demo-1a2b3c4d.train.1|NODE_FAIL|0:0|n1\n", ""))
    with pytest.raises(UnreachableError):
        site.submit()
    assert site.submit().backend_id == "9"


def test_the_note_that_slurm_keeps_of_a_refused_submission_is_no_job(site: Site) -> None:
    site.answers(sbatch=NOBODY)
    with pytest.raises(UnreachableError):
        site.submit()
    site.answers(sbatch=Numbers(), squeue=listing(row("9", 1, "FAILED", "BadConstraints")))
    assert site.submit().backend_id == "11"


def test_a_refusal_is_final_and_may_be_mended(site: Site) -> None:
    site.answers(sbatch=REFUSED)
    with pytest.raises(PreconditionError, match="the profile names partition `main`") as caught:
        site.submit()
    assert caught.value.code == "slurm-refused"
    site.answers(sbatch=Numbers())
    assert site.submit().backend_id == "11"


def test_a_second_link_that_is_refused_spoils_nothing_where_jobs_queue_links_themselves(site: Site) -> None:
    answers = [ShellResult(0, "11\n", ""), ShellResult(1, "", "sbatch: error: QOSMaxSubmitJobPerUserLimit\n")]
    site.answers(sbatch=lambda argv: answers[int(argv[-1]) - 1])
    assert site.submit(num_queued=2).backend_id == "11"
    assert site.shell.count("scancel") == 0


def test_the_sites_guard_is_asked_first(tmp_path: Path) -> None:
    site = Site(tmp_path, submit_guard=("quota-left", "--hours"))
    site.answers(**{"quota-left": ShellResult(1, "", "only 3 node hours are left\n")})
    with pytest.raises(PreconditionError, match=r"`quota-left --hours` .* only 3 node hours are left") as caught:
        site.submit()
    assert caught.value.code == "submit-guard-failed"
    assert site.shell.count("sbatch") == 0


def test_a_folder_is_pushed_before_anything_is_queued(tmp_path: Path) -> None:
    site, pushed = Site(tmp_path), []
    backend = SlurmBackend(
        lab_profile(),
        shell=site.shell,
        push=lambda here, there: pushed.append((here, str(there), len(site.shell.asked))),
    )
    backend.submit(site.rendered())
    assert pushed == [(site.folder, "/shared/windlass/runs/demo-1a2b3c4d/jobs/train-1", 0)]


def test_sbatch_that_is_not_there_is_said(site: Site) -> None:
    site.answers(sbatch=ShellResult(127, "", "sbatch: No such file or directory"))
    with pytest.raises(PreconditionError, match="`sbatch` cannot be run at lab") as caught:
        site.submit()
    assert caught.value.code == "program-missing"


# --- observe ---------------------------------------------------------------------------------------------------------


def test_a_job_runs_while_any_link_does(site: Site) -> None:
    job = site.submit()
    site.answers(squeue=listing(row("11", 1, "COMPLETING", nodes="n1"), row("12", 2, "PENDING", "Dependency")))
    assert site.seen(job) == (JobState.RUNNING, "", "link 1 is completing on n1")
    assert site.backend.explain(job) == ""


def test_a_job_waits_while_links_only_wait(site: Site) -> None:
    job = site.submit()
    site.answers(
        squeue=listing(
            row("11", 1, "TIMEOUT", "TimeLimit", nodes="n1"),
            row("12", 2, "PENDING", "Resources", start="2026-11-21T09:30:00"),
        )
    )
    words = "it is next, and waits for free nodes (Slurm: Resources); expected to start 2026-11-21 09:30"
    assert site.seen(job) == (JobState.QUEUED, "", f"link 2 waits: {words}")
    assert site.backend.explain(job) == words


@pytest.mark.parametrize(
    ("hold", "words"),
    [(True, "it waits for task prep and task data"), (False, "you hold it: release it with `scontrol release 11`")],
)
def test_a_job_that_is_held_says_for_what(site: Site, hold: bool, words: str) -> None:
    job = dataclasses.replace(document(num_queued=1, hold=hold), settings=TaskSettings(after=("prep", "data")))
    found = site.backend.submit(site.backend.render(job, site.folder, ARCHIVE))
    site.answers(squeue=listing(row("11", 1, "PENDING", "JobHeldUser")))
    assert site.backend.explain(found).startswith(words)
    assert words in site.seen(found)[2]


def test_a_job_that_can_never_start_is_queued_with_a_cause(site: Site) -> None:
    job = site.submit()
    site.answers(squeue=listing(row("11", 1, "PENDING", "PartitionTimeLimit", start="2026-11-21T09:30:00")))
    state, cause, detail = site.seen(job)
    assert (state, cause) == (JobState.QUEUED, "unschedulable")
    assert "its walltime is above the partition's limit" in detail
    assert "expected" not in detail


def test_the_cause_of_a_job_that_is_gone_is_that_of_its_last_link_that_ran(site: Site) -> None:
    job = site.submit()
    site.answers(squeue=listing(row("11", 1, "NODE_FAIL", "NodeDown", nodes="n1"), row("12", 2, "CANCELLED")))
    state, cause, detail = site.seen(job)
    assert (state, cause) == (JobState.GONE, "node-lost")
    assert "NODE_FAIL" in detail


def test_what_the_controller_forgot_is_asked_of_accounting_once(tmp_path: Path) -> None:
    site = Site(tmp_path, has_accounting=True)
    job = site.submit()
    site.answers(
        sacct=ShellResult(
            0,
            "11|demo-1a2b3c4d.train.1|PREEMPTED|0:0|n1\n12|demo-1a2b3c4d.train.1|CANCELLED by 0|0:0|None assigned\n",
            "",
        )
    )
    assert site.seen(job)[:2] == (JobState.GONE, "preempted")
    assert site.shell.count("sacct") == 1


def test_without_accounting_the_completion_file_is_read(site: Site) -> None:
    job = site.submit()
    config = "JobCompHost             = localhost\nJobCompLoc              = /log/jobcomp.txt\nJobCompType             = jobcomp/filetxt\n"
    line = "JobId=11 UserId=root(0) GroupId=root(0) Name=demo-1a2b3c4d.train.1 JobState=TIMEOUT Partition=main TimeLimit=1 NodeList=n[1-2] NodeCnt=2 ExitCode=0:0 \n"
    site.answers(scontrol=ShellResult(0, config, ""), grep=ShellResult(0, line, ""))
    assert site.seen(job)[:2] == (JobState.GONE, "walltime")
    assert completion_file("JobCompType = jobcomp/none\nJobCompLoc = /x\n") == ""


def test_a_job_that_nobody_remembers_is_gone_without_a_cause(site: Site) -> None:
    assert site.seen(site.submit()) == (JobState.GONE, "", "Slurm no longer has it")


def test_a_setup_that_failed_without_python_is_the_cause(site: Site) -> None:
    job = site.submit()
    (site.folder / "setup-failed.txt").write_text("there is no `python3` on this node\n")
    assert site.seen(job) == (JobState.GONE, "setup-failed", "there is no `python3` on this node")


def test_while_slurm_is_silent_everything_is_unknown_and_it_is_not_asked_again_at_once(site: Site) -> None:
    job = site.submit()
    site.answers(squeue=DOWN)
    for _ in range(3):
        assert site.seen(job)[0] is JobState.UNKNOWN
    assert site.shell.count("squeue") == 1


def test_many_runs_are_one_question(tmp_path: Path) -> None:
    site = Site(tmp_path)
    marks = [f"{number:020x}" for number in range(500)]
    rows = [[str(n), "RUNNING", "None", "N/A", "N/A", "n1", "x", f"windlass:{mark}.1"] for n, mark in enumerate(marks)]
    jobs = [
        Submission(backend_id=str(n), locator=f"slurm://lab/{n}#{mark}", folder=tmp_path)
        for n, mark in enumerate(marks)
    ]
    site.answers(squeue=listing(*rows))
    for job in jobs:
        assert site.seen(job)[0] is JobState.RUNNING
    assert site.shell.count("squeue") == 1


def test_names_and_comments_of_others_confuse_nothing(site: Site) -> None:
    job = site.submit()
    rows = [
        ["5", "RUNNING", "None", "N/A", "N/A", "n1", "a|b\nc", "evil\n12 windlass"],
        ["6", "RUNNING", "None", "N/A", "N/A", "n1", "x", f"windlass:{MARK[:-1]}.1"],
        row("11", 1, "PENDING", "Priority"),
    ]
    answer = listing(*rows)
    site.answers(squeue=ShellResult(0, "a banner of the site\n" + answer.out, "slurm: warning\n"))
    assert site.seen(job)[0] is JobState.QUEUED


# --- jobs that a node turned down ------------------------------------------------------------------------------------


@pytest.fixture
def hurried(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site at which nothing waits for a node to be drained."""
    monkeypatch.setattr("windlass.backends.slurm.observe._DRAINED_WITHIN_S", 0.0)
    return site


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            "Duplicate jobid",
            "it takes the job for an earlier one; a controller that lost its state reuses ids",
        ),
        ("Prolog error", "the site's prolog failed there"),
        ("Job env setup error", "the job's environment could not be set up there"),
    ],
)
def test_a_job_that_a_node_turned_down_was_cancelled_by_nobody(hurried: Site, reason: str, words: str) -> None:
    job = hurried.submit()
    hurried.answers(
        squeue=listing(row("11", 1, "CANCELLED", nodes="n1")), sinfo=ShellResult(0, f"none\n{reason}\n", "")
    )
    detail = f"a node of n1 refused it: {words} (Slurm: {reason})"
    assert hurried.seen(job) == (JobState.GONE, "node-unhealthy", detail)
    assert hurried.shell.asked[-1] == ("sinfo", "--noheader", "--Node", "--nodes=n1", "--format=%E")


def test_a_node_that_is_drained_a_moment_later_is_seen(hurried: Site) -> None:
    job, reasons = hurried.submit(), ["none\n", "Duplicate jobid\n"]
    hurried.answers(
        squeue=listing(row("11", 1, "CANCELLED", nodes="n1")), sinfo=lambda argv: ShellResult(0, reasons.pop(0), "")
    )
    assert hurried.seen(job)[1] == "node-unhealthy"


@pytest.mark.parametrize("reason", ["none", "the fan of Prolog error fame", ""])
def test_a_job_that_a_person_cancelled_as_it_started_is_cancelled(hurried: Site, reason: str) -> None:
    job = hurried.submit()
    hurried.answers(squeue=listing(row("11", 1, "CANCELLED", nodes="n1")), sinfo=ShellResult(0, f"{reason}\n", ""))
    assert hurried.seen(job) == (JobState.GONE, "cancelled", "it was cancelled in Slurm (Slurm: CANCELLED)")
    assert hurried.shell.count("sinfo") == 2


@pytest.mark.parametrize(("state", "nodes"), [("CANCELLED", ""), ("TIMEOUT", "n1")])
def test_the_nodes_are_asked_of_jobs_alone_that_may_have_been_turned_down(site: Site, state: str, nodes: str) -> None:
    job = site.submit()
    site.answers(squeue=listing(row("11", 1, state, nodes=nodes)))
    assert site.seen(job)[1] == {"CANCELLED": "cancelled", "TIMEOUT": "walltime"}[state]
    assert site.shell.count("sinfo") == 0


def test_a_job_that_ran_and_that_a_controller_forgot_was_cancelled_by_nobody(hurried: Site) -> None:
    job = hurried.submit()
    (hurried.folder / "link-1.json").write_text(json.dumps({"id": "11", "host": "n1", "at": 0.0}))
    hurried.answers(
        squeue=listing(row("11", 1, "CANCELLED", nodes="n1")), sinfo=ShellResult(0, "Duplicate jobid\n", "")
    )
    said = "a restarted controller had lost its record of the job and ended it (Slurm: Duplicate jobid)"
    assert hurried.seen(job) == (JobState.GONE, "killed", said)


def test_a_link_file_that_was_cut_short_does_not_count_as_a_start(hurried: Site) -> None:
    """Its writer died before the document was whole, so no supervisor began."""
    job = hurried.submit()
    hurried.answers(
        squeue=listing(row("11", 1, "CANCELLED", nodes="n1")), sinfo=ShellResult(0, "Duplicate jobid\n", "")
    )
    without_file = hurried.seen(job)
    for content in ("", "{", '{"id": "1', "[]", "{}"):
        (hurried.folder / "link-1.json").write_text(content)
        assert hurried.seen(job) == without_file, content


@pytest.mark.parametrize("has_other_number", [False, True])
def test_a_number_given_twice_tells_that_the_controller_forgot(hurried: Site, has_other_number: bool) -> None:
    """Link 3 got the number of link 1, which ran; an operator has returned the drained node before anybody asked."""
    job = hurried.submit()
    number = "7" if has_other_number else "11"
    (hurried.folder / "link-1.json").write_text(json.dumps({"id": number, "host": "n1", "at": 0.0}))
    (hurried.folder / "link-2.json").write_text("{")
    hurried.answers(squeue=listing(row("11", 3, "CANCELLED", nodes="n1")), sinfo=ShellResult(0, "none\n", ""))
    assert hurried.seen(job)[1] == ("cancelled" if has_other_number else "killed")


@pytest.mark.parametrize(
    ("state", "cause"),
    [("CANCELLED by 1000", "cancelled"), ("CANCELLED by 0", "cancelled"), ("CANCELLED", "killed")],
)
def test_accounting_says_whether_a_person_cancelled_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, cause: str
) -> None:
    monkeypatch.setattr("windlass.backends.slurm.observe._DRAINED_WITHIN_S", 0.0)
    site = Site(tmp_path, has_accounting=True)
    job = site.submit()
    entry = row("11", 1, "CANCELLED", nodes="n1")
    squeue, sinfo, name = listing(entry), ShellResult(0, "none\n", ""), entry[6]
    rows = [("theirs", "CANCELLED by 7", 500), (name, "TIMEOUT", 600), (name, state, 700), ("theirs", "CANCELLED", 900)]
    sacct = "".join(f"11|{whose}|{said}|0:0|{submitted}|1000|n1\n" for whose, said, submitted in rows)
    site.answers(squeue=squeue, sinfo=sinfo, sacct=ShellResult(0, sacct, ""))
    assert site.seen(job)[1] == cause


def test_a_job_whose_batch_script_was_killed_could_start(site: Site) -> None:
    job = site.submit()
    (site.folder / "link-1.json").write_text(json.dumps({"id": "11", "host": "n1", "at": 0.0}))
    site.answers(squeue=listing(row("11", 1, "FAILED", nodes="n1", reason="JobLaunchFailure")))
    said = "its batch script was killed (Slurm: FAILED, JobLaunchFailure)"
    assert site.seen(job) == (JobState.GONE, "killed", said)


def test_a_job_that_was_turned_down_and_forgotten_is_known_by_its_nodes_too(tmp_path: Path) -> None:
    site = Site(tmp_path, has_accounting=True)
    job, name = site.submit(), "demo-1a2b3c4d.train.1"
    site.answers(
        sacct=ShellResult(0, f"11|{name}|CANCELLED by 0|0:0|n[3-4]\n", ""),
        sinfo=ShellResult(0, "none\nProlog error\n", ""),
    )
    assert site.seen(job)[1] == "node-unhealthy"
    assert "--nodes=n[3-4]" in site.shell.asked[-1]


def test_while_nobody_says_what_a_node_had_against_a_job_it_is_unknown(site: Site) -> None:
    job = site.submit()
    site.answers(squeue=listing(row("11", 1, "CANCELLED", nodes="n1")), sinfo=DOWN)
    assert site.seen(job)[0] is JobState.UNKNOWN


# --- cancel ----------------------------------------------------------------------------------------------------------


def test_cancel_ends_waiting_links_before_running_ones_and_waits(site: Site) -> None:
    job = site.submit()
    looks = [
        listing(row("11", 1, "RUNNING", nodes="n1"), row("12", 2, "PENDING"), row("10", 0, "COMPLETED")),
        listing(row("11", 1, "COMPLETING", nodes="n1"), row("12", 2, "CANCELLED")),
        listing(row("11", 1, "CANCELLED", nodes="n1")),
    ]
    site.answers(squeue=lambda argv: looks.pop(0))
    site.backend.cancel(job)
    assert looks == []
    assert [argv for argv in site.shell.asked if argv[0] == "scancel"] == [("scancel", "--quiet", "12", "11")]


def test_a_job_that_does_not_obey_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.backends.slurm.backend._KILL_AFTER_S", -1.0)
    site = Site(tmp_path, kill_wait=1.0)
    job, stays = site.submit(), listing(row("11", 1, "RUNNING", nodes="n1"))
    looks = [stays, stays, NONE]
    site.answers(squeue=lambda argv: looks.pop(0))
    site.backend.cancel(job)
    assert site.shell.asked[-2] == ("scancel", "--quiet", "--signal=KILL", "--full", "11")


def test_a_link_that_is_over_is_not_killed_for_another_that_does_not_obey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id may be another job's by then."""
    monkeypatch.setattr("windlass.backends.slurm.backend._KILL_AFTER_S", -1.0)
    site = Site(tmp_path, kill_wait=1.0)
    job = site.submit()
    both = [row("11", 1, "RUNNING", nodes="n1"), row("12", 2, "RUNNING", nodes="n2")]
    looks = [listing(*both), listing(both[0], row("12", 2, "CANCELLED", nodes="n2")), NONE]
    site.answers(squeue=lambda argv: looks.pop(0))
    site.backend.cancel(job)
    assert site.shell.asked[-2] == ("scancel", "--quiet", "--signal=KILL", "--full", "11")


def test_a_job_that_does_not_end_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.backends.slurm.backend._KILL_AFTER_S", -1.0)
    monkeypatch.setattr("windlass.backends.slurm.backend._GIVE_UP_AFTER_S", -1.0)
    site = Site(tmp_path, kill_wait=1.0)
    job = site.submit()
    site.answers(squeue=listing(row("11", 1, "COMPLETING", nodes="n1")))
    with pytest.raises(UnreachableError, match="Slurm has not ended 11 yet") as caught:
        site.backend.cancel(job)
    assert caught.value.code == "slurm-slow"


def test_cancel_with_nobody_there_is_unreachable(site: Site) -> None:
    job = site.submit()
    site.answers(squeue=DOWN)
    with pytest.raises(UnreachableError, match="Slurm at lab does not respond"):
        site.backend.cancel(job)


def test_an_old_slurm_is_asked_with_old_options(tmp_path: Path) -> None:
    site = Site(tmp_path, version="19.05.8")
    site.answers(id=ShellResult(0, "ada\n", ""))
    site.seen(site.submit())
    (asked,) = {argv for argv in site.shell.asked if argv[0] == "squeue"}
    assert "--user=ada" in asked
    assert "--me" not in asked
