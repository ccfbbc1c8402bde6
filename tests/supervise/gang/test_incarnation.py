"""Starts of a scheduler's job: each has a name of its own, also where the scheduler counts wrong."""

from __future__ import annotations

from pathlib import Path

from windlass.supervise.gang.incarnation import OUTPUT, START_MARK, Incarnation, enter_link


def entered(folder: Path, link: int = 1, job_id: str = "7", mark: str = "", restart: str = "0") -> Incarnation:
    environ = {"SLURM_JOB_ID": job_id, "SLURM_RESTART_COUNT": restart, START_MARK: mark}
    found = enter_link(folder, link, environ)
    assert found is not None
    return found


def test_all_replicas_of_a_start_are_of_one_name(tmp_path: Path) -> None:
    first, second = entered(tmp_path, mark="n1/4/5/100"), entered(tmp_path, mark="n1/4/5/100")
    assert first.name == second.name == "7.0"
    assert not first.is_unknown_restart
    assert (tmp_path / "7.0").is_dir()


def test_a_start_that_the_scheduler_counts_has_the_name_of_its_count(tmp_path: Path) -> None:
    entered(tmp_path, mark="n1/4/5/100")
    second = entered(tmp_path, mark="n2/4/5/200", restart="1")
    assert (second.name, second.is_unknown_restart) == ("7.1", False)


def test_a_start_of_a_job_that_the_scheduler_had_forgotten_gets_a_name_of_its_own(tmp_path: Path) -> None:
    """A controller that comes back with old state starts the job again and counts no restart."""
    entered(tmp_path, mark="n1/4/5/100")
    second, other = entered(tmp_path, mark="n3/4/5/110"), entered(tmp_path, mark="n3/4/5/110")
    assert (second.name, second.is_unknown_restart) == ("7.1", True)
    assert other.name == "7.1"
    third = entered(tmp_path, mark="n1/4/5/120", restart="1")
    assert third.name == "7.2"


def test_an_id_that_was_given_again_to_a_later_link_is_another_start_of_that_link(tmp_path: Path) -> None:
    entered(tmp_path, mark="n1/4/5/100")
    later = entered(tmp_path, link=3, mark="n3/4/5/110")
    assert (later.name, later.link, later.is_unknown_restart) == ("7.1", 3, True)


def test_another_job_is_not_a_link_that_has_begun(tmp_path: Path) -> None:
    entered(tmp_path, mark="n1/4/5/100")
    assert enter_link(tmp_path, 1, {"SLURM_JOB_ID": "8", START_MARK: "n1/4/6/101"}) is None


def test_the_output_of_a_task_of_an_array_is_where_its_script_says(tmp_path: Path) -> None:
    """Beside the script of the array, in the folder of another job."""
    elsewhere = tmp_path / "first-1" / "slurm-9_3.out"
    elsewhere.parent.mkdir()
    elsewhere.write_text("before\n")
    task = enter_link(tmp_path, 1, {"SLURM_JOB_ID": "12", START_MARK: "n1/4/5/100", OUTPUT: str(elsewhere)})
    assert task is not None
    assert (task.output, task.output_begin) == (str(elsewhere), 7)
    later = entered(tmp_path, link=2, job_id="13", mark="n1/4/5/200")
    assert (later.output, later.output_begin) == (str(tmp_path / "slurm-13.out"), 0)
