"""Settings for checkpoints: when and where to save them, and how long to keep them; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from windlass.config.annotations import Diagnostic, Doc, DurationText, Range
from windlass.train.duration import Duration

__all__ = ["CheckpointerConfig", "LoadConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """Source of the initial state, used if the folder has no checkpoint."""

    path: Annotated[
        str,
        Doc(
            "A checkpoint, a folder of checkpoints (the newest is loaded), `hf:PATH` (weights), or an OLMo-core checkpoint; if empty, none."
        ),
    ] = ""
    strategy: Annotated[
        Literal["if-available", "always", "never"],
        Doc(
            "`if-available` starts from scratch if there is no checkpoint, `always` fails, `never` always starts from scratch."
        ),
    ] = "if-available"
    optim: Annotated[bool | None, Doc("Load the optimiser's state; if null, load it if the source has it.")] = None
    trainer: Annotated[
        bool | None, Doc("Load the step, data position and random state; if null, load them if the source has them.")
    ] = None
    is_strict: Annotated[bool, Doc("Fail if a weight is missing or unexpected.")] = True
    verifies: Annotated[bool, Doc("Compare checksums of all tensors that are read; sizes are always compared.")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointerConfig:
    """Folder, save intervals and retention of checkpoints."""

    folder: Annotated[
        str, Doc("Local path or fsspec URL; if empty, the task's checkpoint folder or else `checkpoints/NAME`.")
    ] = ""
    every: Annotated[
        Duration | None, Doc("Length between permanent checkpoints; if null, only the last one is saved.")
    ] = Duration(value=1000, unit="steps")
    ephemeral_every: Annotated[
        Duration | None, Doc("Length between ephemeral checkpoints, each replaced by the next.")
    ] = None
    every_time: Annotated[float | None, DurationText(), Range(min=1), Doc("Time between ephemeral checkpoints.")] = None
    at_start: Annotated[bool, Doc("Save before the first step too.")] = False
    keep: Annotated[
        int | None, Range(min=1), Doc("Number of newest permanent checkpoints to keep; if null, all of them.")
    ] = None
    is_async: Annotated[bool, Doc("Write checkpoints in the background while training continues.")] = True
    load: Annotated[LoadConfig, Doc("Source of the initial state.")] = LoadConfig()

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that ranges cannot express."""
        for name, every in (("every", self.every), ("ephemeral_every", self.ephemeral_every)):
            if every is not None and every.value == 0:
                yield name, f"invalid `{name}` `{every}`: it must be above 0", "invalid-value", "write null for none"
