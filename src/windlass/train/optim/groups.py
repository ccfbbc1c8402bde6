"""Parameter groups: globs for parameter names, of which the first match is used."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from windlass.core.errors import Problem, SpecError
from windlass.core.names import nearest

if TYPE_CHECKING:
    from torch import Tensor, nn

    from windlass.train.optim.config import GroupConfig

__all__ = ["Assigned", "assign", "freeze", "plain_name", "plain_parameters"]

WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
"""Name levels that compilation and activation checkpointing insert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Parameter with its name and the settings for it.

    Attributes:
        group: index of the group in the configuration; -1 if none matches.
    """

    name: str
    parameter: Tensor
    group: int


def plain_name(name: str, *, is_replicated: bool = False) -> str:
    """Return a parameter's name without the prefixes that wrappers add.

    Args:
        is_replicated: whether the module is wrapped by DDP, which adds `module.` in front.
    """
    parts = name.split(".")
    if is_replicated and parts[0] == "module":
        parts = parts[1:]
    return ".".join(part for part in parts if part not in WRAPPERS)


def plain_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all parameters with their plain names, each once, in the order of the model."""
    from torch.nn.parallel import DistributedDataParallel  # lazy: settings are read without torch

    is_replicated = isinstance(model, DistributedDataParallel)
    for name, parameter in model.named_parameters():
        yield plain_name(name, is_replicated=is_replicated), parameter


def freeze(model: nn.Module, groups: Sequence[GroupConfig], names: Collection[str] = ()) -> None:
    """Freeze parameters; call this before DDP hooks the trainable ones. Idempotent."""
    for item in assign(dict(plain_parameters(model)), groups, names):
        if item.group >= 0 and groups[item.group].is_frozen:
            item.parameter.requires_grad_(False)


def assign(
    parameters: Mapping[str, Tensor], groups: Sequence[GroupConfig], names: Collection[str] = ()
) -> list[Assigned]:
    """Assign each parameter to the first group that matches its name.

    Args:
        names: names of all parameters, if the model is a pipeline stage.

    Raises:
        SpecError: a glob matches no name; reports all such globs.
    """
    names = names or parameters
    problems = [
        _unmatched(glob, f"optim.groups.{number}.match", names)
        for number, group in enumerate(groups)
        for glob in group.match
        if not any(fnmatchcase(name, glob) for name in names)
    ]
    if problems:
        raise SpecError(problems)
    return [
        Assigned(name=name, parameter=parameter, group=_first(name, groups)) for name, parameter in parameters.items()
    ]


def _first(name: str, groups: Sequence[GroupConfig]) -> int:
    for number, group in enumerate(groups):
        if any(fnmatchcase(name, glob) for glob in group.match):
            return number
    return -1


def _unmatched(glob: str, where: str, names: Collection[str]) -> Problem:
    closest = nearest(glob, names)
    some = ", ".join(list(names)[:3])
    hint = f"did you mean `{closest}`?" if closest else f"parameters are named like {some}"
    return Problem(f"{where} {glob!r} matches no parameter", "unmatched-glob", None, hint)
