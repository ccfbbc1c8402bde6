"""Optimisers and schedules as data; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from windlass.config import Doc, Finding, OneOrMany, Range
from windlass.train.duration import Duration

__all__ = [
    "AdamWConfig",
    "ConstantConfig",
    "CosineConfig",
    "GroupConfig",
    "InverseSqrtConfig",
    "LinearConfig",
    "LionConfig",
    "MuonConfig",
    "OptimConfig",
    "ScheduleConfig",
    "SequentialConfig",
    "SkipConfig",
    "WSDConfig",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Parameters whose names match take other settings; the first group that matches wins."""

    match: Annotated[tuple[str, ...], OneOrMany(), Doc("Globs over parameter names, such as `embed.*` or `*norm*`.")]
    lr: Annotated[float | None, Range(min=0), Doc("Peak learning rate.")] = None
    weight_decay: Annotated[float | None, Range(min=0), Doc("Decoupled weight decay.")] = None
    is_frozen: Annotated[bool, Doc("Whether these parameters stay as they are.")] = False

    def check(self) -> Iterator[Finding]:
        """What no single field can see."""
        own = [name for name in ("lr", "weight_decay") if getattr(self, name) is not None]
        if self.is_frozen and own:
            yield own[0], f"{own[0]} of parameters that are frozen", "wrong-value", f"leave out {own[0]} or `is_frozen`"
        elif not self.is_frozen and not own:
            yield "match", "this group sets nothing", "wrong-value", "give it `lr`, `weight_decay` or `is_frozen: true`"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipConfig:
    """Steps whose loss or gradient norm is far out are not taken."""

    window: Annotated[int, Range(min=2), Doc("Steps that are looked back upon.")] = 128
    sigmas: Annotated[float, Range(above=0), Doc("Standard deviations above the mean that are too far.")] = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    lr: Annotated[float, Range(min=0), Doc("Peak learning rate.")] = 3e-4
    weight_decay: Annotated[float, Range(min=0), Doc("Decoupled weight decay.")] = 0.1
    groups: Annotated[tuple[GroupConfig, ...], Doc("Parameters with settings of their own.")] = ()
    max_grad_norm: Annotated[
        float | None, Range(above=0), Doc("Gradients are scaled down to this norm; null: not.")
    ] = 1.0
    skip: Annotated[SkipConfig | None, Doc("Leave out steps that are far out.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWConfig(_Common):
    """Adam with decoupled weight decay. Source: Loshchilov and Hutter 2019."""

    kind: Literal["adamw"] = "adamw"
    betas: Annotated[tuple[float, ...], Doc("Decay of the first and the second moment.")] = (0.9, 0.95)
    eps: Annotated[float, Range(above=0), Doc("Added to the root of the second moment.")] = 1e-8
    is_fused: Annotated[bool | None, Doc("One kernel for all parameters; null: where it is faster.")] = None

    def check(self) -> Iterator[Finding]:
        """What no single field can see."""
        yield from _betas(self.betas)


@dataclass(frozen=True, slots=True, kw_only=True)
class LionConfig(_Common):
    """Sign of a momentum. Source: Chen et al. 2023, "Symbolic discovery", algorithm 2."""

    kind: Literal["lion"] = "lion"
    betas: Annotated[tuple[float, ...], Doc("Of the update and of the momentum.")] = (0.9, 0.99)

    def check(self) -> Iterator[Finding]:
        """What no single field can see."""
        yield from _betas(self.betas)


@dataclass(frozen=True, slots=True, kw_only=True)
class MuonConfig(_Common):
    """Orthogonalised momentum for matrices, AdamW for the rest. Source: Jordan et al. 2024, "Muon"."""

    kind: Literal["muon"] = "muon"
    momentum: Annotated[float, Range(min=0, max=1), Doc("Decay of the momentum.")] = 0.95
    is_nesterov: Annotated[bool, Doc("Look ahead along the momentum.")] = True
    num_iterations: Annotated[int, Range(min=1), Doc("Newton-Schulz iterations.")] = 5
    scale: Annotated[Literal["spectral", "rms"], Doc("sqrt(max(1, rows/cols)), or 0.2 * sqrt(max(rows, cols)).")] = (
        "rms"
    )
    matrices: Annotated[tuple[str, ...], OneOrMany(), Doc("Globs over names of parameters that are such matrices.")] = (
        "blocks.*",
    )
    except_matrices: Annotated[
        tuple[str, ...], OneOrMany(), Doc("Globs over those among them that AdamW takes all the same.")
    ] = ("*.router.*",)
    adamw_lr: Annotated[float | None, Range(min=0), Doc("For vectors, embedding and head; null: `lr`.")] = None
    betas: Annotated[tuple[float, ...], Doc("AdamW's, for the rest.")] = (0.9, 0.95)
    eps: Annotated[float, Range(above=0), Doc("AdamW's, for the rest.")] = 1e-8

    def check(self) -> Iterator[Finding]:
        """What no single field can see."""
        yield from _betas(self.betas)
        if self.momentum >= 1.0:
            yield "momentum", f"momentum {self.momentum} never forgets", "wrong-value", "write a number below 1"


OptimConfig: TypeAlias = AdamWConfig | LionConfig | MuonConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warm:
    warmup: Annotated[Duration, Doc("Linear rise from `warmup_from` to the peak.")] = Duration(value=0, unit="steps")
    warmup_from: Annotated[float, Range(min=0, max=1), Doc("Share of the peak at the start.")] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantConfig(_Warm):
    """The peak, after warm-up."""

    kind: Literal["constant"] = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class CosineConfig(_Warm):
    """Half a cosine down to `final` of the peak."""

    kind: Literal["cosine"] = "cosine"
    final: Annotated[float, Range(min=0, max=1), Doc("Share of the peak at the end.")] = 0.1
    over: Annotated[Duration | None, Doc("Length of the schedule; null: the run's `duration`.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearConfig(_Warm):
    """A straight line down to `final` of the peak."""

    kind: Literal["linear"] = "linear"
    final: Annotated[float, Range(min=0, max=1), Doc("Share of the peak at the end.")] = 0.0
    over: Annotated[Duration | None, Doc("Length of the schedule; null: the run's `duration`.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WSDConfig(_Warm):
    """Warm-up, stable, decay. Source: Hu et al. 2024, "MiniCPM", section 4."""

    kind: Literal["wsd"] = "wsd"
    decay: Annotated[Duration, Doc("Length of the decay at the end.")]
    final: Annotated[float, Range(min=0, max=1), Doc("Share of the peak at the end.")] = 0.0
    shape: Annotated[Literal["linear", "cosine", "sqrt"], Doc("Of the decay.")] = "linear"
    over: Annotated[Duration | None, Doc("Length of the schedule; null: the run's `duration`.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InverseSqrtConfig(_Warm):
    """The peak times sqrt(warm-up / step)."""

    kind: Literal["inverse-sqrt"] = "inverse-sqrt"

    def check(self) -> Iterator[Finding]:
        """What no single field can see."""
        if self.warmup.value == 0:
            yield "warmup", "the peak times sqrt(0 / step) is nothing", "wrong-value", "give it a warm-up"


PartConfig: TypeAlias = ConstantConfig | CosineConfig | LinearConfig | InverseSqrtConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialConfig:
    """Schedules one after another; each begins anew where the one before ended."""

    kind: Literal["sequential"] = "sequential"
    parts: Annotated[tuple[PartConfig, ...], Doc("The schedules.")]
    lengths: Annotated[tuple[Duration, ...], Doc("Of all parts but the last.")]

    def check(self) -> Iterator[Finding]:
        """What no single field can see."""
        num_parts, num_lengths = len(self.parts), len(self.lengths)
        if not num_parts:
            yield "parts", "there are no parts", "wrong-value", "list one schedule or more"
        elif num_lengths != num_parts - 1:
            message = f"{num_lengths} lengths for {num_parts} parts"
            yield "lengths", message, "wrong-value", f"write {num_parts - 1}: the last part lasts to the run's end"


ScheduleConfig: TypeAlias = (
    ConstantConfig | CosineConfig | LinearConfig | WSDConfig | InverseSqrtConfig | SequentialConfig
)


def _betas(betas: tuple[float, ...]) -> Iterator[Finding]:
    if len(betas) != 2:
        yield "betas", f"{len(betas)} betas", "wrong-value", "write two numbers, such as [0.9, 0.95]"
    for place, beta in enumerate(betas[:2]):
        if not 0.0 <= beta < 1.0:
            yield f"betas.{place}", f"{beta} is not from 0 up to, but not including, 1", "out-of-range", "try 0.9"
