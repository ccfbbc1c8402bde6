"""Token rows with streams, scores of a model on them, and the interface of objectives.

Legend: B rows, T tokens of a row, S sequences of a microbatch, P pairs of a microbatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

__all__ = ["LossTotals", "Objective", "Scores", "Stream", "TokenBatch", "TokenRows"]

Stream: TypeAlias = Literal["advantage", "behaviour", "proximal", "reference", "teacher"]
"""Names of streams.

advantage: advantage of the token.
behaviour: log-probability under the policy and the sampling settings that produced the token.
proximal: log-probability under the policy at the start of this batch, from which the ratio is clipped.
reference: log-probability under the reference policy.
teacher: log-probability under the teacher, for distillation.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """A rectangular microbatch. Each sequence lies in one row; a pair never spans two microbatches.

    Attributes:
        tokens_BT: int64 token ids.
        labels_BT: int64; the token after each position, or `windlass.train.batch.IGNORE` where none is predicted.
        documents_BT: int32 index of each token's document within its row, from 0 (padding counts as a separate
            document); None if every token may attend to all tokens before it.
        positions_BT: int64 position of each token in its sequence, where document 0 of a row is a prompt that all its other
            documents continue and see; None if documents do not see each other.
        sequences_BT: int32 index of the sequence that the *label* of each position belongs to, counted within this
            microbatch from 0; -1: none.
        num_sequences: number of sequences, S.
        weights: float32 (B, T) by name, aligned with labels; 0 where a label does not count. Each objective states the
            names that it reads.
        streams: float32 (B, T) by name, aligned with labels; anything where no component counts the label.
        pairs_P2: int32 (chosen, rejected) sequences, for preference and reward objectives.
        margins_P: float32 margin of each pair, for reward objectives; None: 0.
        rows: indices of the rows in the epoch's order, for logs and for per-sample random numbers.
    """

    tokens_BT: Tensor
    labels_BT: Tensor
    documents_BT: Tensor | None = None
    positions_BT: Tensor | None = None
    sequences_BT: Tensor
    num_sequences: int
    weights: Mapping[str, Tensor]
    streams: Mapping[str, Tensor] = field(default_factory=dict)
    pairs_P2: Tensor | None = None
    margins_P: Tensor | None = None
    rows: tuple[int, ...] = ()

    def to(self, device: torch.device | str, *, non_blocking: bool = True) -> TokenRows:
        """Return a copy on a device; does not wait for the transfer of page-locked memory."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        return self._mapped(moved)

    def pinned(self) -> TokenRows:
        """Return a copy in page-locked memory."""
        return self._mapped(lambda tensor: tensor.pin_memory())

    def context(self) -> dict[str, Tensor]:
        """Return what a decoder needs to know of the rows besides tokens and documents."""
        return {} if self.positions_BT is None else {"positions_T": self.positions_BT}

    def sequence_sums(self, values_BT: Tensor) -> Tensor:
        """Sum values over the labels of each sequence.

        Returns:
            float64 (S,); 0 for a sequence without labels here. Differentiable.
        """
        places_N = self.sequences_BT.flatten().long()
        places_N = torch.where(places_N < 0, self.num_sequences, places_N)
        values_N = values_BT.double().flatten()
        return values_N.new_zeros(self.num_sequences + 1).index_add(0, places_N, values_N)[:-1]

    def at_labels(self, values_S: Tensor) -> Tensor:
        """Return each sequence's value at its labels, (B, T); 0 where the label has no sequence. Differentiable."""
        padded = torch.cat([values_S, values_S.new_zeros(1)])  # a label without a sequence has index -1: the last
        return padded[self.sequences_BT.long()]

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> TokenRows:
        return replace(
            self,
            tokens_BT=change(self.tokens_BT),
            labels_BT=change(self.labels_BT),
            documents_BT=None if self.documents_BT is None else change(self.documents_BT),
            positions_BT=None if self.positions_BT is None else change(self.positions_BT),
            sequences_BT=change(self.sequences_BT),
            weights={name: change(tensor) for name, tensor in self.weights.items()},
            streams={name: change(tensor) for name, tensor in self.streams.items()},
            pairs_P2=None if self.pairs_P2 is None else change(self.pairs_P2),
            margins_P=None if self.margins_P is None else change(self.margins_P),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """This process's microbatches of a global batch; an equal number on every process.

    Attributes:
        parts: microbatches; an empty one has weight 0 everywhere.
    """

    parts: tuple[TokenRows, ...]

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens, padding included."""
        return sum(part.tokens_BT.numel() for part in self.parts)

    @property
    def rows(self) -> tuple[int, ...]:
        """Return the indices of all rows in the epoch's order."""
        return tuple(row for part in self.parts for row in part.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Outputs of a model for a microbatch.

    Attributes:
        logp_BT: float32 (float64 in tests) log-probability of each label; 0 where the label is IGNORE.
        entropy_BT: entropy of each position's distribution in nats, with gradient; None unless the objective wants it.
        log_squares_BT: log of the sum of squared probabilities, without gradient; None unless the objective wants it.
        values_BT: output of the scalar head at each position; None unless the objective wants it.
    """

    logp_BT: Tensor | None = None
    entropy_BT: Tensor | None = None
    log_squares_BT: Tensor | None = None
    values_BT: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTotals:
    """Losses and metrics of a microbatch, as sums.

    Attributes:
        losses: float64 scalar with gradient per component, to be divided by the component's global weight.
        metrics: detached float64 sums; divided by their entry of `weights`, else by the first component's weight.
        weights: detached float64 sums by which metrics of the same name are divided.
    """

    losses: Mapping[str, Tensor]
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """A loss as sums over sequences and labels.

    The train module divides each component by the component's weight, summed over all microbatches and processes, and
    adds the quotients. Packing, padding, microbatch split and number of processes therefore do not change the gradient.
    """

    @property
    def components(self) -> tuple[str, ...]:
        """Return the names of the loss components; never empty."""

    @property
    def weights(self) -> frozenset[str]:
        """Return the keys that `TokenRows.weights` must hold."""

    @property
    def needs(self) -> frozenset[str]:
        """Return the streams that `TokenRows.streams` must hold."""

    @property
    def wants_entropy(self) -> bool:
        """Return whether `Scores.entropy_BT` is read."""

    @property
    def wants_log_squares(self) -> bool:
        """Return whether `Scores.log_squares_BT` is read."""

    @property
    def wants_values(self) -> bool:
        """Return whether `Scores.values_BT` is read, of a model with a scalar head, instead of `logp_BT`."""

    def weigh(self, rows: TokenRows) -> tuple[float, ...]:
        """Return the weight of this microbatch for each component. Rows on the host: no device is waited for."""

    def sums(self, rows: TokenRows, scores: Scores) -> LossTotals:
        """Return the losses and metrics of this microbatch."""
