"""Settings for the loss and the optimizers, as data; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from windlass.config.annotations import Diagnostic, Doc, OneOrMany, Range
from windlass.train.targets.config import TargetConfig

__all__ = [
    "AdamWConfig",
    "DionConfig",
    "GroupConfig",
    "LionConfig",
    "LossConfig",
    "MatrixConfig",
    "MuonConfig",
    "NorMuonConfig",
    "OptimConfig",
    "OptimTarget",
    "SkipConfig",
]

MAX_LR = 1000.0
"""Learning rate above which training cannot work: a step moves weights by about as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Cross-entropy, averaged over the tokens that count in the global batch."""

    z_loss: Annotated[
        float, Range(min=0), Doc("Weight of the squared log normaliser (z-loss). Source: PaLM, section 5.")
    ] = 0.0
    kind: Annotated[
        Literal["auto", "plain", "chunked"],
        Doc("`chunked` never holds all logits in memory; `auto` uses it if that is faster."),
    ] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings for parameters whose names match; the first group that matches is used."""

    match: Annotated[tuple[str, ...], OneOrMany(), Doc("Globs for parameter names, such as `embed.*` or `*norm*`.")]
    lr: Annotated[float | None, Range(min=0, max=MAX_LR), Doc("Peak learning rate.")] = None
    weight_decay: Annotated[float | None, Range(min=0), Doc("Decoupled weight decay.")] = None
    is_frozen: Annotated[bool, Doc("Do not train these parameters.")] = False

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        own = [name for name in ("lr", "weight_decay") if getattr(self, name) is not None]
        if self.is_frozen and own:
            yield own[0], f"{own[0]} of parameters that are frozen", "invalid-value", f"remove {own[0]} or `is_frozen`"
        elif not self.is_frozen and not own:
            yield (
                "match",
                "this group sets nothing",
                "invalid-value",
                "give it `lr`, `weight_decay` or `is_frozen: true`",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipConfig:
    """Rule for skipping steps whose loss or gradient norm is an outlier."""

    window: Annotated[int, Range(min=2), Doc("Number of past steps to compare with.")] = 128
    sigmas: Annotated[float, Range(above=0), Doc("Standard deviations above the mean at which a step is skipped.")] = (
        6.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    lr: Annotated[float, Range(min=0, max=MAX_LR), Doc("Peak learning rate.")] = 3e-4
    weight_decay: Annotated[float, Range(min=0), Doc("Decoupled weight decay.")] = 0.1
    groups: Annotated[tuple[GroupConfig, ...], Doc("Parameters with separate settings.")] = ()
    max_grad_norm: Annotated[
        float | None, Range(above=0), Doc("Clip gradients to this norm; if null, do not clip.")
    ] = 1.0
    skip: Annotated[SkipConfig | None, Doc("Skip outlier steps.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWConfig(_Common):
    """Adam with decoupled weight decay. Source: Loshchilov and Hutter 2019."""

    kind: Literal["adamw"] = "adamw"
    betas: Annotated[tuple[float, ...], Doc("Decay rates of the first and second moments.")] = (0.9, 0.95)
    eps: Annotated[float, Range(above=0, max=1), Doc("Constant added to the root of the second moment.")] = 1e-8
    is_fused: Annotated[
        bool | None, Doc("Use one fused kernel for all parameters; if null, only if that is faster.")
    ] = None

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        yield from _betas(self.betas)


@dataclass(frozen=True, slots=True, kw_only=True)
class LionConfig(_Common):
    """Update by the sign of a momentum. Source: Chen et al. 2023, "Symbolic discovery", algorithm 2."""

    kind: Literal["lion"] = "lion"
    betas: Annotated[tuple[float, ...], Doc("Decay rates of the update and the momentum.")] = (0.9, 0.99)

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        yield from _betas(self.betas)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfMatrices(_Common):
    momentum: Annotated[float, Range(min=0, max=1), Doc("Decay of the momentum.")] = 0.95
    matrices: Annotated[tuple[str, ...], OneOrMany(), Doc("Globs for the names of matrices to optimise this way.")] = (
        "blocks.*",
    )
    except_matrices: Annotated[tuple[str, ...], OneOrMany(), Doc("Exceptions to these, which AdamW optimises.")] = (
        "*.router.*",
    )
    adamw_lr: Annotated[
        float | None, Range(min=0, max=MAX_LR), Doc("Learning rate of vectors, embedding and head; if null, `lr`.")
    ] = None
    betas: Annotated[tuple[float, ...], Doc("Settings of AdamW, for all other parameters.")] = (0.9, 0.95)
    eps: Annotated[float, Range(above=0, max=1), Doc("Settings of AdamW, for all other parameters.")] = 1e-8

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        yield from _betas(self.betas)
        if self.momentum >= 1.0:
            yield (
                "momentum",
                f"invalid momentum {self.momentum}: it must be below 1",
                "invalid-value",
                "write a number below 1",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MuonConfig(_OfMatrices):
    """Orthogonalised momentum for matrices, and AdamW for the rest. Source: Jordan et al. 2024, "Muon"."""

    kind: Literal["muon"] = "muon"
    is_nesterov: Annotated[bool, Doc("Use Nesterov momentum.")] = True
    num_iterations: Annotated[int, Range(min=1), Doc("Number of Newton-Schulz iterations.")] = 5
    scale: Annotated[Literal["spectral", "rms"], Doc("sqrt(max(1, rows/cols)), or 0.2 * sqrt(max(rows, cols)).")] = (
        "rms"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NorMuonConfig(_OfMatrices):
    """Muon with steps of about equal size for all rows. Source: Li et al. 2025, "NorMuon", algorithm 1."""

    kind: Literal["normuon"] = "normuon"
    is_nesterov: Annotated[bool, Doc("Use Nesterov momentum.")] = False
    num_iterations: Annotated[int, Range(min=1), Doc("Number of Newton-Schulz iterations.")] = 5
    row_beta: Annotated[float, Range(min=0, max=1), Doc("Decay of the second moment of rows.")] = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class DionConfig(_OfMatrices):
    """Low-rank orthonormal updates for matrices, and AdamW for the rest. Source: Ahn et al. 2025, "Dion", algorithm 1."""

    kind: Literal["dion"] = "dion"
    rank_share: Annotated[float, Range(above=0, max=1), Doc("Rank, as a fraction of a matrix's shorter side.")] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimTarget(_Common, TargetConfig):
    """Your own optimizer or one of torch's, called with parameter groups and their learning rates."""


MatrixConfig: TypeAlias = MuonConfig | NorMuonConfig | DionConfig
OptimConfig: TypeAlias = AdamWConfig | LionConfig | MatrixConfig | OptimTarget


def _betas(betas: tuple[float, ...]) -> Iterator[Diagnostic]:
    if len(betas) != 2:
        message = f"`betas` has {len(betas)} {'number' if len(betas) == 1 else 'numbers'}, not 2"
        yield "betas", message, "invalid-value", "write two numbers, such as [0.9, 0.95]"
    for place, beta in enumerate(betas[:2]):
        if not 0.0 <= beta < 1.0:
            message = f"`betas.{place}` is `{beta}`, not in the range 0 <= beta < 1"
            yield f"betas.{place}", message, "invalid-value", "try 0.9"
