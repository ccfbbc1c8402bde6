"""When training state is kept, where and for how long, as data; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from windlass.config import Diagnostic, Doc, DurationText, Range
from windlass.train.duration import Duration as Length

__all__ = ["CheckpointerConfig", "LoadConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """Where the first state comes from when the folder has none."""

    path: Annotated[
        str, Doc("A checkpoint, a folder of them (the newest), `hf:PATH` (weights), or OLMo-core's; empty: none.")
    ] = ""
    strategy: Annotated[
        Literal["if-available", "always", "never"],
        Doc(
            "if-available: begin anew where nothing is; always: refuse to; never: do not look, not even in the folder."
        ),
    ] = "if-available"
    optim: Annotated[bool | None, Doc("Whether the optimiser's state is taken; null: where there is one.")] = None
    trainer: Annotated[bool | None, Doc("Whether step, data position and random state are taken; null: likewise.")] = (
        None
    )
    is_strict: Annotated[bool, Doc("Whether every weight must be there.")] = True
    verifies: Annotated[bool, Doc("Compare checksums of all tensors that are read; sizes always are.")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointerConfig:
    """Where and when."""

    folder: Annotated[str, Doc("Local or an URL of fsspec; empty: the task's own, else `checkpoints/NAME`.")] = ""
    every: Annotated[Length | None, Doc("Permanent ones; null: only the last.")] = Length(value=1000, unit="steps")
    ephemeral_every: Annotated[Length | None, Doc("Ones that the next replaces.")] = None
    every_time: Annotated[float | None, DurationText(), Range(min=1), Doc("Ephemeral ones after so long.")] = None
    at_start: Annotated[bool, Doc("One before the first step.")] = False
    keep: Annotated[int | None, Range(min=1), Doc("Permanent ones that stay, the newest; null: all.")] = None
    is_async: Annotated[bool, Doc("Write in the background while training goes on.")] = True
    load: Annotated[LoadConfig, Doc("Where to begin.")] = LoadConfig()

    def check(self) -> Iterator[Diagnostic]:
        """What no range says."""
        for name, every in (("every", self.every), ("ephemeral_every", self.ephemeral_every)):
            if every is not None and every.value == 0:
                yield name, f"`{name}` is `{every}`, which never comes", "out-of-range", "write null for none"
