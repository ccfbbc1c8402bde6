from __future__ import annotations

from scripts.experiment_reference import PAGE, reference


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == reference(), "python -m scripts.experiment_reference --write"


def test_the_page_says_what_a_key_takes_and_what_local_refuses() -> None:
    lines = reference().splitlines()
    assert (
        "| `nodes` | a whole number |  | Number of nodes, one replica each. Default: 1, or as many as `total_gpus` needs. |"
        in lines
    )
    assert "| `grace` | a duration such as `20m` | `30s` | Time between TERM and KILL. |" in lines
    assert any(line.startswith("| `disk` ") and "Refused on `local`: disk space is neither" in line for line in lines)
    assert "## `tasks.NAME.checkpoints`" in lines
