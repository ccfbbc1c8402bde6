"""Batch of token rows: what the loader returns and the language module trains on.

Legend: B rows, T tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["IGNORE", "Batch"]

IGNORE = -100
"""Label of a position that does not count in the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """This process's rows of a global batch, in the order of its microbatches.

    Attributes:
        tokens_BT: int64 token ids.
        labels_BT: int64; at each position the token after it, IGNORE where that does not count. The last position of a
            row has none.
        documents_BT: int32 number of each token's document within its row, rising from 0 (padding has a number of its
            own); None if every token may attend to all before it.
        rows: numbers of the rows in the order of the epoch, for logs and for random numbers per sample.
        num_rows_step: rows of one microbatch; B is a multiple of it.
    """

    tokens_BT: Tensor
    labels_BT: Tensor
    documents_BT: Tensor | None = None
    rows: tuple[int, ...] = ()
    num_rows_step: int

    def pinned(self) -> Batch:
        """A copy in page-locked memory."""
        documents_BT = None if self.documents_BT is None else self.documents_BT.pin_memory()
        return replace(
            self,
            tokens_BT=self.tokens_BT.pin_memory(),
            labels_BT=self.labels_BT.pin_memory(),
            documents_BT=documents_BT,
        )
