"""Kinds of inputs of a source: token folders, token files, text to tokenize. Imports neither torch nor numpy."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from windlass.core.errors import Problem, SpecError
from windlass.train.data.config import AnySource, SourceConfig, SourceTarget
from windlass.train.data.manifest import MANIFEST

__all__ = ["Input", "InputKind", "find_inputs", "source_name"]

InputKind: TypeAlias = Literal["folder", "raw", "text", "jsonl", "parquet", "dataset"]

_BY_ENDING: dict[str, InputKind] = {
    ".npy": "raw",
    ".bin": "raw",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
_COMPRESSED = (".gz", ".zst")
_DATASET_MARKS = ("dataset_dict.json", "dataset_info.json", "state.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Input of a source: a file, a folder of tokens, or a dataset.

    Attributes:
        path: file or folder; for a dataset, its name on the hub or its folder.
    """

    kind: InputKind
    path: str

    @property
    def is_tokens(self) -> bool:
        """Return whether the input is already tokenized."""
        return self.kind in ("folder", "raw")


def source_name(source: AnySource) -> str:
    """Return the name of a source for reports and errors."""
    if isinstance(source, SourceTarget):
        return source.target
    return source.path[0] + (f" and {len(source.path) - 1} more" if len(source.path) > 1 else "")


def find_inputs(source: SourceConfig) -> list[Input]:
    """Return a source's inputs in the order of its paths; those of a glob or folder are sorted by name.

    Raises:
        SpecError: a path does not exist (`file-not-found`), or cannot be read (`file-unreadable`).
    """
    problems: list[Problem] = []
    found: list[Input] = []
    for path in source.path:
        new = list(_inputs_of(path))
        if not new:
            hint = "check the path; a relative path starts at the working directory"
            problems.append(Problem(f"no data at {path}", "file-not-found", hint=hint))
        found += new
    problems += _unfit(source, found)
    if problems:
        raise SpecError(problems)
    return found


def _inputs_of(path: str) -> Iterable[Input]:
    if path.startswith("hf:"):
        return [Input(kind="dataset", path=path.removeprefix("hf:"))]
    if "://" in path:
        hint = "download it first, as with `data:` in an experiment, and pass its folder"
        raise SpecError(
            [Problem(f"{path} is a URL; tokens and text are read from files", "file-unreadable", hint=hint)]
        )
    place = Path(path).expanduser()
    if place.exists():
        return _inputs_at(place)
    matches = sorted(glob.glob(str(place), recursive=True))
    return [found for match in matches for found in _inputs_at(Path(match))]


def _inputs_at(place: Path) -> list[Input]:
    if not place.is_dir():
        return [Input(kind=_kind(place), path=str(place))]
    if (place / MANIFEST).is_file():
        return [Input(kind="folder", path=str(place))]
    if any((place / mark).is_file() for mark in _DATASET_MARKS):
        return [Input(kind="dataset", path=str(place))]
    files = sorted(file for file in place.rglob("*") if file.is_file())
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(place).parts)]
    files = [
        file for file in files if not file.name.endswith(".csv.gz")
    ]  # lists the documents of the token file beside it
    return [Input(kind=_kind(file), path=str(file)) for file in files]


def _kind(file: Path) -> InputKind:
    name = file.name.lower()
    for ending in _COMPRESSED:
        name = name.removesuffix(ending)
    return _BY_ENDING.get(Path(name).suffix, "text")


def _unfit(source: SourceConfig, found: Sequence[Input]) -> list[Problem]:
    """Return a problem for each setting that would have no effect."""
    problems: list[Problem] = []
    raw = [entry for entry in found if entry.kind == "raw"]
    for name, is_set in (("label_mask", bool(source.label_mask)), ("dtype", source.dtype != "auto")):
        if is_set and len(raw) != len(found):
            other = next(entry for entry in found if entry.kind != "raw")
            message = f"`{name}` is for token files without a manifest; {other.path} is {other.kind}"
            problems.append(
                Problem(message, "setting-unused", hint=f"remove `{name}`, or move these files into another source")
            )
    return problems
