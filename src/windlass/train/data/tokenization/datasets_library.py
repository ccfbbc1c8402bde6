"""Hugging Face datasets as Arrow files that any process can read without the library."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from windlass.core.errors import Problem, SpecError
from windlass.train.data.config import SourceConfig
from windlass.train.data.tokenization.readers import SpanKind, require

__all__ = ["dataset_files"]

_SAVED = ("dataset_dict.json", "state.json")


def dataset_files(name: str, source: SourceConfig, cache: Path) -> list[tuple[SpanKind, str]]:
    """The files of a dataset of the hub or of a folder; fetched and prepared where `datasets` did not before.

    A part of a split (`train[:1%]`) has no files of its own: it is written below `cache`, once.

    Raises:
        SpecError: there is no such dataset (`data-missing`).
        WindlassError: the library is missing (`extra-missing`).
    """
    try:
        import datasets  # lazy: 2 s, only for `hf:`
    except ImportError as error:
        raise require("datasets", f"hf:{name}") from error
    try:
        found = _load(datasets, name, source)
    except Exception as error:
        hint = "check its name, `split` and `subset`; HF_TOKEN for a private one"
        raise SpecError([Problem(f"the dataset {name} cannot be read: {error}", "data-missing", hint=hint)]) from error
    paths = [entry["filename"] for entry in found.cache_files]
    if paths and found._indices is None and _num_rows(paths) == len(found):
        return [("arrow", path) for path in paths]
    return [("parquet", _written(found, cache))]


def _load(datasets: Any, name: str, source: SourceConfig) -> Any:
    place = Path(name).expanduser()
    if not any((place / mark).is_file() for mark in _SAVED):
        return datasets.load_dataset(str(place) if place.exists() else name, source.subset or None, split=source.split)
    found = datasets.load_from_disk(str(place))
    return found[source.split] if isinstance(found, datasets.DatasetDict) else found


def _num_rows(paths: list[str]) -> int:
    import pyarrow as pa  # lazy: `datasets` brought it

    count = 0
    for path in paths:
        with pa.memory_map(path) as file, pa.ipc.open_stream(file) as reader:
            count += sum(batch.num_rows for batch in reader)
    return count


def _written(found: Any, cache: Path) -> str:
    """A Parquet file with exactly these rows, named by the fingerprint that `datasets` gave them."""
    path = cache / "datasets" / f"{found._fingerprint}.parquet"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        found.to_parquet(str(hidden))
        os.replace(hidden, path)
    return str(path)
