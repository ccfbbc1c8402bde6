"""Collectives on single tensors, under the names that this version of torch uses; 2.13 renamed them."""

from __future__ import annotations

import torch.distributed as dist

__all__ = ["all_gather", "reduce_scatter"]

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
