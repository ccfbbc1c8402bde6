"""Slurm as a running job asks it: answers of real Slurms (22.05 and later), marks, links, what an end means."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from windlass.core.errors import WaitTimeoutError
from windlass.core.process import Completed
from windlass.record.causes import Cause
from windlass.supervise.chain.links import scheduler_of
from windlass.supervise.chain.scheduler import PastLink, SchedulerError
from windlass.supervise.job import ChainConfig, JobDocument, JobPaths, QueueRequest, ReplicaCommand
from windlass.supervise.slurm.job_listing import cause_of_end, comment_of, mark_of, read_listing
from windlass.supervise.slurm.scheduler import SlurmScheduler, read_why, submission_environment

MARK = mark_of("token")
JOB = JobDocument(
    run="demo",
    task="train",
    job=1,
    token="token",
    paths=JobPaths("/run"),
    command=ReplicaCommand(("true",), cwd="/"),
    chain=ChainConfig(
        scheduler="slurm",
        mode="successor",
        mark=MARK,
        bin="/opt/slurm/bin",
        submit=("/opt/slurm/bin/sbatch", "--parsable", "--comment=" + comment_of(MARK, "${link}"), "/run/x", "${link}"),
    ),
    queue=QueueRequest(name="demo.train.1", exclude=("n9",), signal_before_s=60.0),
)
ENVIRONMENT = {
    "SLURM_JOB_ID": "7",
    "SLURM_RESTART_COUNT": "0",
    "SLURM_CONF": "/etc/slurm.conf",
    "SLURM_JOB_NUM_NODES": "4",
    "SBATCH_PARTITION": "other",
    "PATH": "/modules/bin:/usr/bin",
    "WINDLASS_SUBMIT_PATH": "/usr/bin",
    "WINDLASS_TOKEN": "token.0",
    "HOME": "/home/ada",
    "LC_ALL": "C",
}

# scontrol show job, Slurm 22.05.8, shortened to the lines that are read and their neighbours.
SHOWN = """\
JobId=7 JobName=demo.train.1
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=0 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime={run_time} TimeLimit={limit} TimeMin=N/A
   StartTime=2026-11-21T08:24:12 EndTime=2026-11-21T08:29:12 Deadline=N/A
   PreemptEligibleTime=2026-11-21T08:24:12 PreemptTime={preempted}
   ReqNodeList=(null) ExcNodeList={excluded}
   NodeList=n[1-2]
   Comment={comment}\x20
"""
# The same of 24.11, which says more on the lines between.
SHOWN_NEW = """\
JobId=7 JobName=demo.train.1
   UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A
   Priority=1 Nice=0 Account=lab QOS=normal
   JobState={state} Reason={reason} FailedNode=n2 Dependency=(null)
   Requeue=0 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime={run_time} TimeLimit={limit} TimeMin=N/A
   SubmitTime=2026-11-21T08:24:11 EligibleTime=2026-11-21T08:24:11
   StartTime=2026-11-21T08:24:12 EndTime=2026-11-21T08:29:12 Deadline=N/A
   PreemptEligibleTime=2026-11-21T08:24:12 PreemptTime={preempted}
   SuspendTime=None SecsPreSuspend=0 LastSchedEval=2026-11-21T08:24:12 Scheduler=Backfill
   ReqNodeList=(null) ExcNodeList={excluded}
   Comment={comment}
   SubmitLine=sbatch --parsable --comment=JobState=FAILED /run/x 1
   TresPerTask=cpu=1
"""


def shown(text: str = SHOWN, **changes: str) -> str:
    facts = {"state": "RUNNING", "reason": "None", "restarts": "0", "run_time": "00:01:00", "limit": "1-00:00:00"}
    facts["comment"] = comment_of(MARK, 1)
    return text.format(**{**facts, "preempted": "None", "excluded": "(null)", **changes})


def listed(*rows: Sequence[str]) -> str:
    return "".join("\x1e" + "\x1f".join(row) + "\n" for row in rows)


def row(number: str, link: int, state: str, mark: str = MARK, reason: str = "None") -> list[str]:
    return [number, state, reason, "N/A", "N/A", "(null)", "demo.train.1", comment_of(mark, link)]


def accounted(*states: str, number: str = "5", name: str = "demo.train.1", start: str = "1000", at: int = 900) -> str:
    """Rows of sacct for one id: submissions at `at` and each 10 s later."""
    rows = [(number, name, state, "0:0", str(at + 10 * k), start, "n[1-2]") for k, state in enumerate(states)]
    return "".join("|".join(row) + "\n" for row in rows)


def past(number: str = "5", began_at: float = 1000.0, link: int = 1, mark: str = MARK) -> PastLink:
    return PastLink(number, began_at, mark, "demo.train.1", link)


class Programs:
    """Slurm's programs with answers of a test; keeps what was asked."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers
        self.asked: list[tuple[str, ...]] = []
        self.environments: list[Mapping[str, str]] = []

    def __call__(self, argv: Sequence[str], env: Mapping[str, str]) -> Completed:
        self.asked.append((Path(argv[0]).name, *argv[1:]))
        self.environments.append(env)
        answer = self.answers.get(Path(argv[0]).name, "")
        if isinstance(answer, Exception):
            raise answer
        code, out, err = answer if isinstance(answer, tuple) else (0, answer, "")
        return Completed(tuple(argv), code, str(out), err)


def scheduler(**answers: object) -> tuple[SlurmScheduler, Programs]:
    programs = Programs(**answers)
    return SlurmScheduler(JOB, environ=ENVIRONMENT, runner=programs), programs


def test_only_a_job_with_a_chain_has_a_scheduler() -> None:
    assert isinstance(scheduler_of(JOB), SlurmScheduler)
    assert scheduler_of(dataclasses.replace(JOB, chain=ChainConfig())) is None


def test_a_link_is_queued_from_an_environment_without_this_jobs() -> None:
    slurm, programs = scheduler(squeue="", sbatch="12;lab\n")
    assert slurm.queue(2, []) == "12"
    assert programs.asked[-1] == ("sbatch", "--parsable", f"--comment=windlass:{MARK}.2", "/run/x", "2")
    assert programs.environments[-1] == {
        "HOME": "/home/ada",
        "LC_ALL": "C",
        "PATH": "/usr/bin",
        "SLURM_CONF": "/etc/slurm.conf",
    }


def test_a_link_that_is_there_is_not_queued_again() -> None:
    slurm, programs = scheduler(squeue=listed(row("7", 1, "RUNNING"), row("8", 2, "PENDING")))
    assert slurm.queue(2, []) == "8"
    assert [asked[0] for asked in programs.asked] == ["squeue"]


def test_hosts_to_avoid_are_added_to_those_of_the_site() -> None:
    slurm, programs = scheduler(sbatch="12\n")
    slurm.queue(2, ["n3"])
    assert programs.asked[-1][1] == "--exclude=n3,n9"


def test_queued_are_the_living_links_of_this_job_and_no_others() -> None:
    rows = [
        row("7", 1, "RUNNING"),
        row("8", 2, "PENDING", reason="Dependency"),
        row("9", 2, "PENDING"),
        row("10", 3, "CANCELLED"),
        row("11", 4, "PENDING", mark="0" * 20),
    ]
    slurm, programs = scheduler(squeue=listed(*rows))
    found = slurm.queued()
    assert set(found) == {1, 2}
    assert found[1] == "7"
    assert "--name=demo.train.1" in programs.asked[0]


def test_what_cannot_be_asked_is_an_error_that_says_what_slurm_said() -> None:
    slurm, _ = scheduler(
        squeue=(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    )
    with pytest.raises(SchedulerError, match=r"`squeue` failed: .*Unable to contact slurm controller"):
        slurm.queued()
    slurm, _ = scheduler(sbatch=WaitTimeoutError("`sbatch` did not end within 20 s"))
    with pytest.raises(SchedulerError, match="did not end within 20 s"):
        slurm.queue(2, [])


def test_cancelling_what_is_over_is_no_error() -> None:
    slurm, programs = scheduler(scancel=(1, "", "scancel: error: Kill job error on job id 8: Invalid job id specified"))
    slurm.cancel(["8"])
    slurm.cancel([])
    assert programs.asked == [("scancel", "8")]
    slurm, _ = scheduler(
        scancel=(1, "", "scancel: error: Kill job error on job id 8: Unable to contact slurm controller")
    )
    with pytest.raises(SchedulerError):
        slurm.cancel(["8"])


def test_avoiding_keeps_what_a_link_avoids_already() -> None:
    slurm, programs = scheduler(scontrol=shown(excluded="n[7-8],m1"))
    slurm.avoid(["8"], ["n3"])
    assert programs.asked[-1] == ("scontrol", "update", "JobId=8", "ExcNodeList=m1,n3,n[7-8]")


def test_a_requeue_names_this_job() -> None:
    slurm, programs = scheduler(scontrol=shown())
    slurm.requeue()
    assert programs.asked[-1] == ("scontrol", "requeue", "7")


def test_a_task_of_an_array_is_named_by_its_number_in_it() -> None:
    rows = listed(row("7_1", 1, "TIMEOUT", mark="0" * 20), row("7_3", 1, "NODE_FAIL"))
    programs = Programs(squeue=rows, scontrol=shown(comment=comment_of("0" * 20, 1)) + "\n" + shown())
    environ = {**ENVIRONMENT, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    slurm = SlurmScheduler(JOB, environ=environ, runner=programs)
    slurm.requeue()
    assert programs.asked == [("scontrol", "show", "job", "7_3"), ("scontrol", "requeue", "7_3")]
    assert slurm.how_ended(past("7"))[0] is Cause.NODE_LOST


@pytest.mark.parametrize("text", [SHOWN, SHOWN_NEW])
@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"preempted": "2026-11-21T08:24:58"}, Cause.PREEMPTED),
        ({"state": "COMPLETING", "restarts": "1", "run_time": "00:00:00"}, Cause.PREEMPTED),
        ({"state": "COMPLETING", "reason": "NodeDown"}, Cause.NODE_LOST),
        ({"state": "COMPLETING", "reason": "TimeLimit", "run_time": "00:01:10", "limit": "00:01:00"}, Cause.WALLTIME),
        ({"run_time": "23:59:10"}, Cause.WALLTIME),
        ({"state": "COMPLETING", "reason": "JobLaunchFailure"}, Cause.KILLED),
        ({"state": "COMPLETING", "reason": "NonZeroExitCode"}, Cause.KILLED),
        ({"state": "COMPLETING", "reason": "OutOfMemory"}, Cause.OUT_OF_MEMORY),
        ({"state": "COMPLETING"}, Cause.CANCELLED),
        ({"state": "COMPLETING", "limit": "UNLIMITED"}, Cause.CANCELLED),
        ({"state": "CANCELLED"}, Cause.CANCELLED),
        ({"state": "NODE_FAIL", "reason": "NodeDown"}, Cause.NODE_LOST),
        ({}, Cause.UNKNOWN),
    ],
)
def test_why_a_job_was_told_to_go(text: str, changes: dict[str, str], cause: Cause) -> None:
    found, message = read_why(shown(text, **changes), 0, 60.0)
    assert found is cause
    assert bool(message) is (cause is not Cause.UNKNOWN)


def test_an_earlier_restart_is_no_reason() -> None:
    assert read_why(shown(restarts="1"), 1, 60.0) == (Cause.UNKNOWN, "")


def test_a_controller_that_is_away_gives_no_reason() -> None:
    slurm, _ = scheduler(scontrol=(1, "", "slurm_load_jobs error: Unable to contact slurm controller"))
    assert slurm.explain_notice() == (Cause.UNKNOWN, "")


def test_how_a_link_ended_is_asked_of_the_controller_and_then_of_accounting() -> None:
    slurm, programs = scheduler(squeue=listed(row("5", 1, "TIMEOUT", reason="TimeLimit")))
    assert slurm.how_ended(past())[0] is Cause.WALLTIME
    assert [asked[0] for asked in programs.asked] == ["squeue"]
    gone = (1, "", "slurm_load_jobs error: Invalid job id specified")
    slurm, _ = scheduler(
        squeue=gone, sacct=accounted("REQUEUED", "PREEMPTED", "PENDING") + accounted("FAILED", number="6")
    )
    assert slurm.how_ended(past(began_at=912.0))[0] is Cause.PREEMPTED
    assert slurm.how_ended(past(began_at=950.0)) == (Cause.UNKNOWN, "")
    slurm, _ = scheduler(squeue=gone, sacct=(1, "", "Slurm accounting storage is disabled"))
    assert slurm.how_ended(past()) == (Cause.UNKNOWN, "")


@pytest.mark.parametrize(
    ("state", "reason", "cause"),
    [
        ("COMPLETED", "None", Cause.OK),
        ("CANCELLED by 1000", "", Cause.CANCELLED),
        ("TIMEOUT", "TimeLimit", Cause.WALLTIME),
        ("DEADLINE", "", Cause.TIMEOUT),
        ("PREEMPTED", "None", Cause.PREEMPTED),
        ("NODE_FAIL", "NodeDown", Cause.NODE_LOST),
        ("BOOT_FAIL", "", Cause.NODE_UNHEALTHY),
        ("OUT_OF_MEMORY", "OutOfMemory", Cause.OUT_OF_MEMORY),
        ("FAILED", "NonZeroExitCode", Cause.UNKNOWN),
        ("FAILED", "JobLaunchFailure", Cause.NODE_UNHEALTHY),
        ("FAILED", "BadConstraints", Cause.UNSCHEDULABLE),
    ],
)
def test_every_final_state_has_a_cause(state: str, reason: str, cause: Cause) -> None:
    found = cause_of_end(state, reason)
    assert found is not None
    assert found.cause is cause
    assert state.partition(" ")[0] in found.message


@pytest.mark.parametrize("reason", ["JobLaunchFailure", "0:9", "exit code 0:9"])
def test_a_batch_script_that_began_and_was_killed_could_start(reason: str) -> None:
    found = cause_of_end("FAILED", reason, has_begun=True)
    assert found is not None
    assert (found.cause, found.message) == (Cause.KILLED, f"its batch script was killed (Slurm: FAILED, {reason})")


@pytest.mark.parametrize("reason", ["NonZeroExitCode", "3:0", "exit code 137:0"])
def test_supervisors_that_began_and_left_no_word_were_killed(reason: str) -> None:
    """They say how their work ended before their batch script can fail, and Slurm has lost no node."""
    found = cause_of_end("FAILED", reason, has_begun=True)
    assert found is not None
    assert (found.cause, found.message) == (Cause.KILLED, f"its supervisors were killed (Slurm: FAILED, {reason})")


NO_ACCOUNTING = (1, "", "Slurm accounting storage is disabled")


@pytest.mark.parametrize(
    ("started", "reasons", "sacct", "cause"),
    [
        ("1000", "none\n", NO_ACCOUNTING, Cause.CANCELLED),
        ("1000", "none\nfan broken\n", accounted("CANCELLED by 0"), Cause.CANCELLED),
        ("1000", "none\n", accounted("CANCELLED by 1000"), Cause.CANCELLED),
        ("1000", "none\n", accounted("CANCELLED"), Cause.KILLED),
        ("1000", "none\nDuplicate jobid\n", NO_ACCOUNTING, Cause.KILLED),
        ("1000", "none\nDuplicate jobid\n", accounted("CANCELLED by 0"), Cause.KILLED),
        ("1000", "Prolog error\n", accounted("CANCELLED by 1000"), Cause.CANCELLED),
        ("1010", "none\n", NO_ACCOUNTING, Cause.KILLED),
        ("1010", "none\n", accounted("CANCELLED by 0"), Cause.KILLED),
        ("1002", "none\n", NO_ACCOUNTING, Cause.CANCELLED),
        ("1000", "none\n", accounted("RUNNING"), Cause.UNKNOWN),
    ],
)
def test_a_cancel_is_a_persons_unless_slurm_did_it_itself(
    started: str, reasons: str, sacct: object, cause: Cause
) -> None:
    """`started`: when Slurm says that the job began which it cancelled; code of ours began at 1000."""
    entry = ["5", "CANCELLED", "None", started, "1011", "n[1-2]", "demo.train.1", comment_of(MARK, 1)]
    slurm, programs = scheduler(squeue=listed(entry), sinfo=reasons, sacct=sacct)
    assert slurm.how_ended(past())[0] is cause
    gone = (1, "", "slurm_load_jobs error: Invalid job id specified")
    if sacct is not NO_ACCOUNTING:
        state = str(sacct).split("|")[2]
        slurm, _ = scheduler(squeue=gone, sinfo=reasons, sacct=accounted(state, start=started))
        assert slurm.how_ended(past())[0] is cause
    assert programs.environments[0]["SLURM_TIME_FORMAT"] == "%s"


def test_a_notice_that_may_be_a_cancel_is_looked_at_again_with_time() -> None:
    shows = shown(state="COMPLETING")
    slurm, programs = scheduler(scontrol=shows, sinfo="Duplicate jobid\n", sacct=NO_ACCOUNTING)
    assert slurm.explain_notice()[0] is Cause.CANCELLED
    assert [asked[0] for asked in programs.asked] == ["scontrol"]
    assert slurm.explain_notice(has_time=True)[0] is Cause.KILLED
    assert ("sinfo", "--noheader", "--Node", "--nodes=n[1-2]", "--format=%E") in programs.asked


def test_a_start_that_nobody_reports_as_over_is_cancelled_until_it_is_gone() -> None:
    shows = [shown(), shown(state="COMPLETING"), shown(state="CANCELLED")]
    slurm, programs = scheduler(scontrol=shows[0])
    assert slurm.end_this_start() == "RUNNING"
    assert programs.asked[-1] == ("scancel", "7")
    programs.answers["scontrol"] = shows[1]
    assert slurm.end_this_start() == "COMPLETING"
    programs.answers["scontrol"] = shows[2]
    assert slurm.end_this_start() == ""
    programs.answers["scontrol"] = shown(restarts="1")
    assert slurm.end_this_start() == ""
    programs.answers["scontrol"] = (1, "", "slurm_load_jobs error: Invalid job id specified")
    assert slurm.end_this_start() == ""
    assert [asked[0] for asked in programs.asked].count("scancel") == 1


@pytest.mark.parametrize(
    ("changes", "is_over"),
    [
        ({}, False),
        ({"state": "SUSPENDED"}, False),
        ({"state": "COMPLETING"}, True),
        ({"state": "CANCELLED"}, True),
        ({"state": "PENDING"}, True),
        ({"restarts": "1"}, True),
        ({"comment": "(null)"}, True),
    ],
)
def test_whether_this_start_is_over_for_slurm(changes: dict[str, str], is_over: bool) -> None:
    slurm, programs = scheduler(scontrol=shown(**changes))
    assert slurm.is_over() is is_over
    programs.answers["scontrol"] = (1, "", "slurm_load_jobs error: Unable to contact slurm controller")
    with pytest.raises(SchedulerError):
        slurm.is_over()


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "REQUEUE_HOLD", "SPECIAL_EXIT", ""])
def test_a_state_that_is_not_final_is_no_end(state: str) -> None:
    assert cause_of_end(state) is None


def test_a_listing_survives_what_others_write_into_names_and_comments() -> None:
    evil = ["3", "RUNNING", "None", "N/A", "N/A", "n1", "a|b c\nd", "windlass:\nJOBID 9 windlass:zz.1"]
    text = "a banner\n" + listed(evil, row("4", 12, "PENDING")) + "squeue: a warning\n"
    found = {job.id: job for job in read_listing(text)}
    assert (found["3"].mark, found["3"].name) == ("", "a|b c\nd")
    assert (found["4"].mark, found["4"].link, found["4"].nodes) == (MARK, 12, "")


def test_the_mark_does_not_tell_the_token() -> None:
    assert mark_of("token") == mark_of("token") != mark_of("token2")
    assert len(MARK) == 20


def test_without_modules_the_path_is_the_one_there_is() -> None:
    assert submission_environment({"PATH": "/bin"}) == {"PATH": "/bin"}


# --- ids that were given again ---------------------------------------------------------------------------------------

OTHERS = "f" * 20


@pytest.mark.parametrize("other", [("", 0), (OTHERS, 1), (MARK, 3)])
def test_another_job_that_has_the_id_now_is_not_taken_for_a_link(other: tuple[str, int]) -> None:
    """A stranger's, one of another job of ours, and another link of this one; its own end is not ours."""
    mark, link = other
    entry = row("5", link, "TIMEOUT", mark=mark, reason="TimeLimit")
    entry[-1] = entry[-1] if mark else "somebody else"
    slurm, _ = scheduler(squeue=listed(entry), sacct=NO_ACCOUNTING)
    assert slurm.how_ended(past()) == (Cause.UNKNOWN, "")
    slurm, _ = scheduler(squeue=listed(entry), sacct=accounted("PREEMPTED"))
    assert slurm.how_ended(past())[0] is Cause.PREEMPTED


def test_accounting_of_another_job_with_the_id_says_nothing_of_a_link() -> None:
    gone = (1, "", "slurm_load_jobs error: Invalid job id specified")
    earlier, later = accounted("CANCELLED by 7", name="theirs", at=500), accounted("FAILED", name="theirs", at=1100)
    slurm, _ = scheduler(squeue=gone, sacct=earlier + accounted("PREEMPTED") + later)
    assert slurm.how_ended(past())[0] is Cause.PREEMPTED
    next_link = accounted("CANCELLED by 1000", at=1060)  # a link of this very job that got the id
    slurm, _ = scheduler(squeue=gone, sacct=accounted("TIMEOUT") + next_link)
    assert slurm.how_ended(past())[0] is Cause.WALLTIME
    slurm, _ = scheduler(squeue=gone, sacct=earlier + later)
    assert slurm.how_ended(past()) == (Cause.UNKNOWN, "")


def test_who_cancelled_a_link_is_not_who_cancelled_another_job_of_its_id() -> None:
    entry = ["5", "CANCELLED", "None", "1000", "1011", "n[1-2]", "demo.train.1", comment_of(MARK, 1)]
    theirs = accounted("CANCELLED by 7", name="theirs", at=500) + accounted("CANCELLED by 8", name="theirs", at=1500)
    slurm, _ = scheduler(squeue=listed(entry), sinfo="none\n", sacct=theirs + accounted("CANCELLED"))
    assert slurm.how_ended(past())[0] is Cause.KILLED
    slurm, _ = scheduler(squeue=listed(entry), sinfo="none\n", sacct=theirs)
    assert slurm.how_ended(past())[0] is Cause.UNKNOWN


@pytest.mark.parametrize("comment", ["(null)", comment_of(OTHERS, 1), comment_of(MARK, 2)])
def test_nothing_is_asked_of_another_job_that_has_our_id(comment: str) -> None:
    """Neither ended, nor put back into the queue, nor believed."""
    programs = Programs(scontrol=shown(state="COMPLETING", comment=comment), sinfo="idle\n")
    slurm = SlurmScheduler(JOB, link=1, environ=ENVIRONMENT, runner=programs)
    assert slurm.end_this_start() == ""
    assert slurm.explain_notice() == slurm.explain_notice(has_time=True) == (Cause.UNKNOWN, "")
    with pytest.raises(SchedulerError, match="does not know job 7 of this run"):
        slurm.requeue()
    programs.answers["scontrol"] = shown(state="CANCELLED", comment=comment)
    assert not slurm.is_end_confirmed(past("7"))
    assert {asked[:2] for asked in programs.asked} == {("scontrol", "show")}


def test_only_our_own_links_are_kept_away_from_nodes() -> None:
    slurm, programs = scheduler(scontrol=shown(comment=comment_of(OTHERS, 1)))
    slurm.avoid(["8"], ["n3"])
    assert programs.asked == [("scontrol", "show", "job", "8")]


def test_only_jobs_of_ours_that_wait_are_let_go() -> None:
    rows = [
        row("11", 1, "PENDING"),
        row("12_3", 1, "PENDING", mark=OTHERS),
        row("13", 1, "RUNNING"),
        row("14", 1, "PENDING"),
    ]
    rows[3][-1] = "somebody else"
    slurm, programs = scheduler(squeue=listed(*rows))
    slurm.let_go(["11", "12_3", "13", "14", "15"])
    assert programs.asked[-1] == ("scontrol", "release", "11", "12_3")
