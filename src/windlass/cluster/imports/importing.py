"""Import of one file, whatever program it was written for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from windlass.cluster.config import ClusterConfig
from windlass.cluster.imports.ray import is_ray_file, read_ray_file
from windlass.config.emit import to_yaml
from windlass.config.loading import load_config
from windlass.config.yaml_reader.parser import MAX_TEXT, compose, decode_text, too_large
from windlass.core.dataclass import dataclass
from windlass.core.errors import AccessError, NotFoundError, SourcePlace, SpecError

__all__ = ["Imported", "import_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A file as text of ours.

    Attributes:
        kind: the program that the file was written for.
        experiment_yaml: the experiment of a task file; None if the file describes machines alone.
        notes: what is done otherwise, without harm.
    """

    kind: Literal["windlass", "ray", "skypilot"]
    cluster_yaml: str
    experiment_yaml: str | None = None
    notes: tuple[str, ...] = ()


def import_file(path: Path) -> Imported:
    """Read a cluster's file of Ray, a task file of SkyPilot, or a file of ours.

    Raises:
        NotFoundError: there is no such file.
        AccessError: it cannot be read.
        SpecError: contains every key that is unknown, invalid, or cannot be honoured.
    """
    source = str(path)
    text = decode_text(_content(path), source=source)
    if len(text) > MAX_TEXT:
        raise SpecError([too_large(SourcePlace(source), MAX_TEXT)])
    root, _ = compose(text, source=source, merges=True)
    if root is not None and is_ray_file(root):
        ray = read_ray_file(text, source=source)
        return Imported(kind="ray", cluster_yaml=ray.to_yaml(), notes=ray.notes)
    from windlass.cluster.imports.sky import is_sky_file, read_sky_file  # lazy: imports what an experiment is

    if root is not None and is_sky_file(root):
        sky = read_sky_file(text, source=source)
        return Imported(
            kind="skypilot",
            cluster_yaml=to_yaml(sky.cluster),
            experiment_yaml=to_yaml(sky.experiment),
            notes=sky.notes,
        )
    config = load_config(ClusterConfig, text, source=source).value
    return Imported(kind="windlass", cluster_yaml=to_yaml(config))


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read((MAX_TEXT << 2) + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        hint = "name a file of Ray, SkyPilot or windlass"
        raise NotFoundError(f"no such file: {path}", hint=hint, code="file-not-found") from error
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}"
        raise AccessError(message, hint="name a file that you may read", code="file-unreadable") from error
