"""Values of rollouts: what they refuse, and that they are light to import."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from windlass.core.errors import UsageError
from windlass.post.rollout.types import SampleId, Sampling


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": 0}, "sampling.max_new_tokens is 0"),
        ({"temperature": -0.5}, "sampling.temperature is -0.5"),
        ({"temperature": float("nan")}, "sampling.temperature is nan"),
        ({"temperature": float("inf")}, "sampling.temperature is inf"),
        ({"top_k": 0}, "sampling.top_k is 0"),
        ({"top_p": 0.0}, "sampling.top_p is 0.0"),
        ({"top_p": 1.5}, "sampling.top_p is 1.5"),
        ({"stop_texts": ("\n", "")}, "sampling.stop_texts is ['\\n', '']"),
    ],
)
def test_a_value_out_of_range_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Sampling(**{"max_new_tokens": 4, **settings})
    assert (caught.value.message, caught.value.code) == (message, "invalid-value")


def test_ids_are_ordered_by_group_then_member() -> None:
    ids = [SampleId(group=1, member=0), SampleId(group=0, member=2), SampleId(group=0, member=1, attempt=3)]
    assert sorted(ids) == [ids[2], ids[1], ids[0]]


def test_types_and_protocol_do_not_import_torch() -> None:
    program = "import sys, windlass.post.rollout.types, windlass.post.rollout.engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
