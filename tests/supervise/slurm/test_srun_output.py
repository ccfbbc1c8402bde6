"""What srun says of killed tasks; the lines are those of Slurm 22.05."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.supervise.slurm.srun_output import SrunOutput, killed_tasks


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("srun: error: n1: task 0: Killed\n", {0}),
        ("before\nsrun: error: n[1-2]: tasks 0-1: Killed\nafter", {0, 1}),
        ("srun: error: n[1,3-4]: tasks 0,2-3: Killed\n", {0, 2, 3}),
        ("srun: error: n1: task 0: Killed\nsrun: error: n2: task 1: Killed\n", {0, 1}),
        ("srun: error: n1: task 0: Exited with exit code 1\n", set()),
        ("srun: error: n1: task 0: Terminated\n", set()),
        ("0: srun: error: n1: task 0: Killed\n", set()),  # a line of the user's, with its label
        ("srun: error: n1: task : Killed\nsrun: error: n1: task 0-: Killed\n", {0}),
        (f"srun: error: n1: task {'9' * 6000}: Killed\n", set()),  # more digits than Python converts
        ("", set()),
    ],
)
def test_killed_tasks_are_those_that_srun_names(text: str, ranks: set[int]) -> None:
    assert killed_tasks(text) == ranks


def test_what_an_earlier_start_printed_says_nothing_of_this_one(tmp_path: Path) -> None:
    path = tmp_path / "slurm-7.out"
    path.write_text("srun: error: n1: task 0: Killed\n")
    output = SrunOutput(path, path.stat().st_size)
    assert output.killed() == set()
    with path.open("a") as file:
        file.write("srun: error: n2: task 1: Killed\n")
    assert output.killed() == {1}
    assert SrunOutput(tmp_path / "none", 0).killed() == set()
