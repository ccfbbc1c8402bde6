from __future__ import annotations

import pytest

from tests.plan.sample_site import planned, refused, site
from windlass.plan.plan import TaskPlan

PLAIN = "name: x\ntasks: {main: {gpus: 4, run: f}}\n"
TWO = "name: x\ntasks: {a: {gpus: 4, run: f}, b: {nodes: 2, gpus: 2, run: f}}\n"


def task(*overrides: str, at: tuple[str, ...] = ()) -> TaskPlan:
    return planned(PLAIN, *overrides, at=site(*at)).tasks[0]


def chain(*overrides: str, at: tuple[str, ...] = ()) -> tuple[float, int, int, int, str]:
    found = task(*overrides, at=at)
    queue = found.queue
    return queue.time_s, queue.num_links, queue.num_queued, found.chain.num_links, found.chain.mode


def test_links_follow_time_and_per_job() -> None:
    assert chain("limit={time: 5d, per_job: 24h, jobs: 30}") == (86400, 5, 2, 30, "successor")
    assert chain("limit={time: 25h, per_job: 24h}") == (86400, 2, 2, 51, "successor")


def test_a_short_task_has_one_job_with_time_to_start_and_stop() -> None:
    assert chain("limit.time=1h") == (3600 + 600 + 30, 1, 1, 51, "successor")
    assert chain("limit.time=24h")[0] == 86400


def test_without_a_limit_the_partition_has_the_say() -> None:
    assert chain()[0] == 86400
    assert chain(at=("~partitions.gpu.time_max",))[0] == 0
    notes = planned(PLAIN).notes
    assert "limit.time is not set: up to 51 jobs of 1d may follow one another while the task is interrupted" in notes


def test_a_task_that_may_not_be_tried_again_is_not_chained() -> None:
    assert chain("limit.time=1h", "retry.interrupted=0") == (4230, 1, 1, 1, "successor")
    assert chain("limit={time: 1h, jobs: 1}") == (4230, 1, 1, 1, "successor")


def test_limits_that_end_a_chain_early_are_named() -> None:
    text = "allows 3 jobs, but limit.time needs 5 of 1d: the task ends after 3d"
    assert f"limit.jobs {text}" in planned(PLAIN, "limit={time: 5d, per_job: 24h, jobs: 3}").notes
    assert f"retry {text}" in planned(PLAIN, "limit={time: 5d, per_job: 24h}", "retry.interrupted=2").notes


def test_where_compute_nodes_may_not_submit_all_links_are_queued() -> None:
    at = ("scheduler.submits_in_jobs=false",)
    assert chain("limit={time: 5d, per_job: 24h, jobs: 30}", at=at)[2] == 7
    assert chain("limit={time: 5d, per_job: 24h, jobs: 6}", at=at)[2] == 6
    assert chain("limit={per_job: 24h, jobs: 9}", at=at)[2] == 9
    assert chain("limit.per_job=24h", at=at)[2] == 3
    assert not task("limit.time=1h", at=at).chain.can_submit


def test_a_site_that_requeues_queues_one_job() -> None:
    assert chain("limit={time: 5d, per_job: 24h}", at=("scheduler.chain=requeue",))[2:] == (1, 51, "requeue")


def test_a_site_without_chains() -> None:
    at = ("scheduler.chain=none",)
    assert chain("limit.time=1h", at=at) == (4230, 1, 1, 1, "none")
    message, hint = refused(PLAIN, "limit={time: 5d, per_job: 24h}", at=site(*at))["over-walltime"]
    assert message == "limit.time needs 5 jobs of 1d, and `lab` allows no chains"
    assert hint == "limit.time=1d, or `chain: successor` in the site's profile"


def test_the_signal_leaves_most_of_the_walltime() -> None:
    assert task("limit.time=24h").queue.signal_before_s == 120
    assert task("limit={time: 1h, per_job: 80s}").queue.signal_before_s == 20


def test_gpu_hours_of_one_task_are_running_time() -> None:
    plan = planned(PLAIN, "limit.gpu_hours=8")
    assert (plan.tasks[0].settings.time_s, plan.tasks[0].queue.time_s) == (7200, 7200 + 630)
    assert "limit.gpu_hours=8: 4 GPUs of task main may run 2h, all its attempts together" in plan.notes
    assert task("limit.gpu_hours=8", "limit.time=1h").settings.time_s == 3600
    assert task("limit.gpu_hours=400", "limit.per_job=24h").queue.num_links == 5


def test_gpu_hours_that_one_job_cannot_use_up() -> None:
    message, hint = refused(PLAIN, "limit.gpu_hours=400")["over-walltime"]
    assert message == "limit.gpu_hours is 4d4h, and a job in `lab/gpu` may run 1d at most"
    assert hint == "a chain of jobs: limit.per_job=1d"


def test_gpu_hours_of_several_tasks_need_a_time() -> None:
    message, hint = refused(TWO, "limit.gpu_hours=8")["gpu-hours-shared"]
    assert message.startswith("limit.gpu_hours=8: 2 tasks take GPUs (a 4 and b 4), and nothing counts across tasks")
    assert hint == "limit the running time of each: limit.time=1h, or ~limit.gpu_hours"
    notes = planned(TWO, "limit.gpu_hours=8", "limit.time=1h").notes
    assert "limit.gpu_hours=8: limit.time keeps the tasks (a 4 and b 4 GPUs) at 8 together" in notes
    assert "gpu-hours-shared" in refused(TWO, "limit.gpu_hours=7.9", "limit.time=1h")


@pytest.mark.parametrize("hours", ["0.000001", "8"])
def test_gpu_hours_without_gpus(hours: str) -> None:
    plan = planned("name: x\nrun: f\nlimit: {time: 1h}\n", f"limit.gpu_hours={hours}")
    assert any(note.endswith("no task takes a GPU") for note in plan.notes)
    assert plan.tasks[0].settings.time_s == 3600
