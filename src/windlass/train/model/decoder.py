"""Decoder-only transformer. train/parallel distributes it over processes.

Legend: B rows, T tokens of a row, D width of the residual stream, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windlass.train.batch import IGNORE
from windlass.train.model.attention import Attention, MaskTable
from windlass.train.model.cache import RowCache
from windlass.train.model.layers import FeedForward, RMSNorm
from windlass.train.model.moe import MoE
from windlass.train.model.rope import RopeTable, Rotation
from windlass.train.optim.config import LossConfig
from windlass.train.optim.loss import language_loss

if TYPE_CHECKING:
    from windlass.train.model.cache import KVCache, LayerStore
    from windlass.train.model.config import ModelConfig, RopeConfig
    from windlass.train.model.masks import Mask

__all__ = ["Block", "Decoder", "HeadFunction", "LossSums"]


class LossSums(NamedTuple):
    """Losses over a batch, float64 scalars, to be divided by the number of counted labels.

    Attributes:
        loss: cross-entropy, summed over counted labels.
        z_loss: weighted square of the log normaliser, summed over counted labels; not included in `loss`.
        aux: losses of experts, the mean over tokens times the number of counted labels.
    """

    loss: Tensor
    z_loss: Tensor
    aux: Tensor


class HeadFunction(Protocol):
    """A function of the last hidden states and the head, computed inside `Decoder.forward`, where the head is whole.

    Returns named tensors (FSDP finds tensors in tuples, not in dataclasses).
    """

    def __call__(
        self,
        hidden_BTD: Tensor,
        head_weight_VD: Tensor,
        labels_BT: Tensor,
        *,
        soft_cap: float | None,
        aux: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        """Compute from hidden states after the last norm; `aux` is the experts' losses, a mean over tokens."""


class Block(nn.Module):
    """Layer made of attention and feed-forward, each with a residual connection and norms as configured."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.order = config.norm
        self.attention_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.ffn = FeedForward(config.d_model, config.hidden) if config.moe is None else None
        self.moe = MoE(config.d_model, config.moe) if config.moe is not None else None
        is_peri = self.order == "peri"
        self.attention_post_norm = RMSNorm(config.d_model, eps=config.norm_eps) if is_peri else None
        self.ffn_post_norm = RMSNorm(config.d_model, eps=config.norm_eps) if is_peri else None

    def forward(
        self, x_BTD: Tensor, rotation: Rotation | None, mask: Mask, cache: LayerStore | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the residual stream after this layer, and the weighted losses of its experts, if any."""
        aux: Tensor | None = None
        seen_BTD = self.attention(self._before(self.attention_norm, x_BTD), rotation, mask, cache)
        x_BTD = x_BTD + self._after(self.attention_norm, self.attention_post_norm, seen_BTD)
        made_BTD = self._before(self.ffn_norm, x_BTD)
        if self.moe is not None:
            made_BTD, aux = self.moe(made_BTD)
        elif self.ffn is not None:
            made_BTD = self.ffn(made_BTD)
        return x_BTD + self._after(self.ffn_norm, self.ffn_post_norm, made_BTD), aux

    def _before(self, norm: RMSNorm, x_BTD: Tensor) -> Tensor:
        return x_BTD if self.order == "reordered" else norm(x_BTD)

    def _after(self, norm: RMSNorm, post_norm: RMSNorm | None, x_BTD: Tensor) -> Tensor:
        last = norm if self.order == "reordered" else post_norm
        return x_BTD if last is None else last(x_BTD)


class Decoder(nn.Module):
    """Decoder with embedding, blocks, norm and head.

    A pipeline stage sets missing parts to None and drops blocks by name.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed: nn.Embedding | None = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleDict({str(layer): Block(config) for layer in range(config.num_layers)})
        self.norm: RMSNorm | None = RMSNorm(config.d_model, eps=config.norm_eps)
        self.head: nn.Linear | None = None
        self.score: nn.Linear | None = None
        if config.head == "scalar":
            self.score = nn.Linear(config.d_model, 1, bias=False)
        elif not config.is_tied:
            self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        ropes = {config.rope_of(layer) for layer in range(config.num_layers)} - {None}
        self._masks = MaskTable(config.attention)
        self._ropes = {rope: RopeTable(rope, config.head_dim) for rope in ropes if rope is not None}

    def forward(
        self,
        tokens_BT: Tensor,
        documents_BT: Tensor | None = None,
        *,
        labels_BT: Tensor | None = None,
        cache: KVCache | RowCache | None = None,
        loss: LossConfig | HeadFunction | None = None,
        positions_T: Tensor | None = None,
        num_logits: int | None = None,
        logits_at_B: Tensor | None = None,
    ) -> Tensor | LossSums | tuple[Tensor | None, ...]:
        """Return logits (B, T, V), or (B, T) values with a scalar head; with labels, the losses or what `loss` computes.

        Args:
            tokens_BT: int64 ids; on a later pipeline stage the residual stream (B, T, D).
            documents_BT: tokens see only tokens of the same document; if None, all previous tokens.
            labels_BT: the token after each token, or IGNORE if it is excluded from the loss.
            cache: keys and values of the previous tokens; extended.
            loss: settings of the loss, with labels; or a function to compute in its place.
            positions_T: positions of the tokens, if they are not 0, 1, ... (after the cache). If each row has its own,
                (B, T), document 0 of a row is a prompt that all its other documents continue and see.
            num_logits: return logits of only this many last tokens.
            logits_at_B: return logits of only this token of each row, (B, 1, V).
        """
        x_BTD = tokens_BT if self.embed is None else self._embedded(tokens_BT)
        rotations, masks = self._surroundings(x_BTD, documents_BT, cache, positions_T)
        aux: Tensor | None = None
        for name, block in self.blocks.items():
            layer = int(name)
            rope = self.config.rope_of(layer)
            rotation = rotations[rope] if rope is not None else None
            own = cache.layers[name] if cache is not None else None
            x_BTD, added = block(x_BTD, rotation, masks[self.config.window_of(layer)], own)
            aux = added if aux is None else aux + added
        if cache is not None:
            cache.advance(x_BTD.shape[1])
        if self.norm is None:
            return x_BTD
        if logits_at_B is not None:
            x_BTD = x_BTD[torch.arange(x_BTD.shape[0], device=x_BTD.device), logits_at_B][:, None]
        x_BTD = self.norm(x_BTD if num_logits is None else x_BTD[:, -num_logits:])
        return self._output(x_BTD, labels_BT, aux, loss)

    @property
    def head_weight(self) -> Tensor:
        """Return the matrix that maps the residual stream to logits, which is the embedding's if they are tied."""
        if self.head is not None:
            return self.head.weight
        assert self.embed is not None
        return self.embed.weight

    def _output(
        self, x_BTD: Tensor, labels_BT: Tensor | None, aux: Tensor | None, loss: LossConfig | HeadFunction | None
    ) -> Tensor | LossSums | tuple[Tensor | None, ...]:
        if self.score is not None:
            values_BT: Tensor = self.score(x_BTD)[..., 0]
            return values_BT
        if labels_BT is None:
            return self._logits(x_BTD)
        if loss is None or isinstance(loss, LossConfig):
            return self._losses(x_BTD, labels_BT, aux, loss)
        return loss(x_BTD, self.head_weight, labels_BT, soft_cap=self.config.logit_soft_cap, aux=aux)

    def _embedded(self, tokens_BT: Tensor) -> Tensor:
        assert self.embed is not None
        x_BTD: Tensor = self.embed(tokens_BT)
        return x_BTD if self.config.embed_scale is None else x_BTD * self.config.embed_scale

    def _surroundings(
        self,
        x_BTD: Tensor,
        documents_BT: Tensor | None,
        cache: KVCache | RowCache | None,
        positions_T: Tensor | None,
    ) -> tuple[dict[RopeConfig, Rotation], Mapping[int | None, Mask]]:
        """Return the rotations and masks for the layers; layers with equal settings share them."""
        windows = {self.config.window_of(layer) for layer in range(self.config.num_layers)}
        if isinstance(cache, RowCache):
            if documents_BT is not None or positions_T is not None:
                raise ValueError("a cache with rows of different lengths has its own positions and no documents")
            positions_BT = cache.positions()
            rows = {rope: table.take_rows(positions_BT, cache.max_length) for rope, table in self._ropes.items()}
            return rows, cache.masks(windows)
        if positions_T is not None and positions_T.dim() == 2:
            if documents_BT is None or cache is not None:
                raise ValueError("rows of a prompt and its continuations need documents and have no cache")
            length = self.config.max_length
            rows = {rope: table.take_rows(positions_T, length) for rope, table in self._ropes.items()}
            return rows, self._masks.take(windows, x_BTD, documents_BT, positions_BT=positions_T)
        start = cache.length if cache is not None else 0
        rotations = {
            rope: table.take(start, x_BTD.shape[1], x_BTD.device, positions_T) for rope, table in self._ropes.items()
        }
        seen_BS = cache.join(documents_BT) if cache is not None else None
        masks = self._masks.take(windows, x_BTD, documents_BT, start=start, documents_BS=seen_BS)
        return rotations, masks

    def _logits(self, x_BTD: Tensor) -> Tensor:
        logits_BTV = F.linear(x_BTD, self.head_weight) if self.head is None else self.head(x_BTD)
        cap = self.config.logit_soft_cap
        capped_BTV: Tensor = logits_BTV if cap is None else cap * torch.tanh(logits_BTV / cap)
        return capped_BTV

    def _losses(self, x_BTD: Tensor, labels_BT: Tensor, aux: Tensor | None, config: LossConfig | None) -> LossSums:
        config = config if config is not None else LossConfig()
        cap = self.config.logit_soft_cap
        loss, z_loss = language_loss(x_BTD, self.head_weight, labels_BT, loss=config, soft_cap=cap)
        zero = torch.zeros((), dtype=torch.float64, device=x_BTD.device)
        return LossSums(loss, z_loss, zero if aux is None else aux.double() * (labels_BT != IGNORE).sum())
