"""Batch of token rows, which the loader returns and the language module trains on.

Legend: B rows, T tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["IGNORE", "Batch"]

IGNORE = -100
"""Label of a position that is excluded from the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """This process's rows of a global batch, ordered by microbatch.

    Attributes:
        tokens_BT: int64 token ids.
        labels_BT: int64; the token after each position, or IGNORE where it is excluded from the loss, as at the end of
            each row.
        documents_BT: int32 index of each token's document within its row, from 0 (padding counts as a separate
            document); None if every token may attend to all tokens before it.
        rows: indices of the rows in the epoch's order, for logs and for per-sample random numbers.
        num_rows_step: rows of one microbatch; B is a multiple of it.
    """

    tokens_BT: Tensor
    labels_BT: Tensor
    documents_BT: Tensor | None = None
    rows: tuple[int, ...] = ()
    num_rows_step: int

    def pinned(self) -> Batch:
        """Return a copy in page-locked memory."""
        documents_BT = None if self.documents_BT is None else self.documents_BT.pin_memory()
        return replace(
            self,
            tokens_BT=self.tokens_BT.pin_memory(),
            labels_BT=self.labels_BT.pin_memory(),
            documents_BT=documents_BT,
        )
