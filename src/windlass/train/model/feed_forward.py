"""SwiGLU feed-forward layer.

Legend: B rows, T tokens, D width of the residual stream.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FeedForward"]


class FeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)), without biases. Source: Shazeer 2020, "GLU variants improve transformer"."""

    def __init__(self, d_model: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, hidden, bias=False)
        self.up = nn.Linear(d_model, hidden, bias=False)
        self.down = nn.Linear(hidden, d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Same shape as the input."""
        out_BTD: Tensor = self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))
        return out_BTD
