from __future__ import annotations

from scripts.recipe_reference import PAGE, reference


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == reference(), "python -m scripts.recipe_reference --write"


def test_the_page_says_what_a_field_takes_and_to_which_kinds_it_belongs() -> None:
    lines = reference().splitlines()
    assert "| `optim.lr` | a number from 0 to 1000 | `0.0003` | Peak learning rate. |" in lines
    assert (
        "| `optim.momentum` | a number from 0 to 1 | `0.95` | *muon, normuon, dion*: Decay of the momentum. |" in lines
    )
    assert any(line.startswith("| `data.sources.0.path` | text or a list | required |") for line in lines)
    assert "## `callbacks`" in lines
