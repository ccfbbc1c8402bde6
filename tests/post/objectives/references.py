"""Stored losses and gradients of TRL and open-instruct (references.json, made by make_references.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windlass.post.objectives.batch import Objective, Scores, TokenRows
from windlass.train.batch import IGNORE

_STORED = json.loads(Path(__file__).with_name("references.json").read_text())
CASES: Mapping[str, Mapping[str, Any]] = _STORED["cases"]
INPUTS: Mapping[str, Tensor] = {
    name: torch.tensor(values, dtype=torch.float64) for name, values in _STORED["inputs"].items()
}
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5}


def rows(dtype: torch.dtype = torch.float64) -> TokenRows:
    """The answers of the references, one a row; chosen ones first. The fifth has no labels."""
    mask = INPUTS["mask"]
    labels = torch.where(mask > 0, 1, IGNORE)
    streams = {name: INPUTS[name].to(dtype) for name in ("proximal", "behaviour", "reference")}
    advantage = INPUTS["advantage"][:, None].expand(8, 5).to(dtype)
    first = torch.zeros(8, 5)
    first[:, 0] = 1.0
    return TokenRows(
        tokens_BT=torch.zeros(8, 5, dtype=torch.int64),
        labels_BT=labels,
        sequences_BT=torch.arange(8, dtype=torch.int32)[:, None].expand(8, 5).contiguous(),
        num_sequences=8,
        weights={**dict.fromkeys(("policy", "preference", "nll"), mask.float()), "reward": first},
        streams={**streams, "advantage": advantage},
        pairs_P2=torch.tensor([[0, 4], [1, 5], [2, 6], [3, 7]], dtype=torch.int32),
    )


def graded(objective: Objective, own: TokenRows, leaf: str, dtype: torch.dtype) -> tuple[float, Tensor]:
    """Sum of all components over their weights, and its gradient by `logp` or `values`."""
    tensor = INPUTS[leaf].to(dtype, copy=True).requires_grad_()
    scores = Scores(
        logp_BT=tensor if leaf == "logp" else None,
        values_BT=tensor if leaf == "values" else None,
        entropy_BT=INPUTS["entropy"].to(dtype),
        log_squares_BT=INPUTS["log_squares"].to(dtype),
    )
    sums = objective.sums(own, scores)
    assert tuple(sums.losses) == objective.components
    loss = torch.zeros((), dtype=torch.float64)
    for name, weight in zip(objective.components, objective.weigh(own), strict=True):
        assert sums.losses[name].dtype == torch.float64
        loss = loss + sums.losses[name] / weight
    loss.backward()
    assert tensor.grad is not None
    return float(loss.detach()), tensor.grad.double()


def assert_equal(objective: Objective, own: TokenRows, case: str, dtype: torch.dtype, *, leaf: str = "logp") -> None:
    """Compare value and gradient with a stored case."""
    value, grad = graded(objective, own, leaf, dtype)
    bound = TOLERANCES[dtype]
    expected = torch.tensor(CASES[case]["grad"], dtype=torch.float64)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(value, CASES[case]["value"], rtol=bound, atol=bound)
    torch.testing.assert_close(grad, expected, rtol=bound, atol=bound)
