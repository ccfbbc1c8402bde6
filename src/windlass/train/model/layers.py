"""Root-mean-square norm and feed-forward layer.

Legend: ... any leading axes, D size of the normed axis.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FeedForward", "RMSNorm"]


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, x / sqrt(mean(x^2) + eps) * weight, with the mean in float32.

    Source: Zhang and Sennrich 2019, "Root mean square layer normalization".
    """

    def __init__(self, size: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize (..., D); return a tensor with the same shape and dtype."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)

    def extra_repr(self) -> str:
        """Return the size and eps, for print(model)."""
        return f"{self.weight.shape[0]}, eps={self.eps}"


class FeedForward(nn.Module):
    """SwiGLU layer without biases, down(silu(gate(x)) * up(x)).

    Source: Shazeer 2020, "GLU variants improve transformer".
    """

    def __init__(self, d_model: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, hidden, bias=False)
        self.up = nn.Linear(d_model, hidden, bias=False)
        self.down = nn.Linear(hidden, d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return a tensor with the same shape as the input."""
        out_BTD: Tensor = self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))
        return out_BTD
