from __future__ import annotations

import pytest

from windlass.core.errors import AccessError
from windlass.launcher.beaker.secrets import names_at_beaker

KNOWN = ("HF_TOKEN", "me_HF_TOKEN", "WANDB_API_KEY", "you_OPENAI_API_KEY")


def test_a_users_own_secret_comes_first() -> None:
    wanted = {"HF_TOKEN": "HF_TOKEN", "KEY": "WANDB_API_KEY"}
    assert names_at_beaker(wanted, KNOWN, "me", "lab/main") == {"HF_TOKEN": "me_HF_TOKEN", "KEY": "WANDB_API_KEY"}


def test_somebody_elses_is_not_taken_and_all_that_miss_are_named() -> None:
    wanted = {"OPENAI_API_KEY": "OPENAI_API_KEY", "WANDB_KEY": "WANDB_API_KY", "HF_TOKEN": "HF_TOKEN"}
    with pytest.raises(AccessError) as caught:
        names_at_beaker(wanted, KNOWN, "me", "lab/main")
    assert caught.value.code == "beaker-secret-missing"
    assert "`OPENAI_API_KEY`, `WANDB_API_KY`" in caught.value.message
    assert "windlass beaker secret push OPENAI_API_KEY --workspace lab/main" in caught.value.problems[0].hint
