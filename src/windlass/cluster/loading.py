"""Reading of cluster files, ours and Ray's, and finding of the cluster that a command line names."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from windlass.cluster.config import ClusterConfig
from windlass.cluster.home import ClusterHome, find_cluster
from windlass.cluster.imports.ray import is_ray_file, read_ray_file
from windlass.config.document import MappingNode
from windlass.config.loading import load_config
from windlass.config.yaml_reader.parser import compose, decode_text
from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, UsageError
from windlass.runs.home import Home

__all__ = ["ClusterTarget", "LoadedCluster", "find_target", "is_file_name", "load_cluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCluster:
    """A cluster's file.

    Attributes:
        notes: what Ray's file asks for and is done otherwise.
        is_rays: whether it is Ray's file rather than ours.
    """

    config: ClusterConfig
    notes: tuple[str, ...] = ()
    is_rays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTarget:
    """Cluster that FILE or NAME on a command line stands for.

    Attributes:
        home: folder of the cluster; it need not exist.
        loaded: the file, if one was named.
    """

    home: ClusterHome
    loaded: LoadedCluster | None = None

    @property
    def exists(self) -> bool:
        """Return whether the cluster was ever brought up from this machine."""
        return (self.home.path / "id").is_file()

    def config(self) -> ClusterConfig:
        """Return what the named file says or, without one, what the cluster was brought up with."""
        return self.loaded.config if self.loaded is not None else self.home.config()


def is_file_name(word: str) -> bool:
    """Return whether a word names a file rather than a cluster."""
    return "/" in word or word.endswith((".yaml", ".yml"))


def load_cluster(path: Path) -> LoadedCluster:
    """Read a cluster's file. Paths in `files` are relative to the folder of our file; in Ray's, to the current one.

    Raises:
        NotFoundError: there is no such file.
        SpecError: contains every problem of the file.
    """
    try:
        text = decode_text(path.read_bytes(), source=str(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        hint = "name a cluster's file, ours or Ray's"
        raise NotFoundError(f"no such file: {path}", hint=hint, code="file-not-found") from error
    except IsADirectoryError as error:
        raise UsageError(f"{path} is a folder", hint="name a cluster's file", code="file-unreadable") from error
    root, _ = compose(text, source=str(path), merges=True)
    if root is not None and is_ray_file(root):
        found = read_ray_file(text, source=str(path))
        return LoadedCluster(config=_absolute(found.config, Path.cwd()), notes=found.notes, is_rays=True)
    if isinstance(root, MappingNode) and root.find("place") is None:
        from windlass.cluster.imports.sky import is_sky_file  # lazy: imports what an experiment is

        if is_sky_file(root):
            hint = f"windlass cluster import {shlex.quote(str(path))} > cluster.yaml"
            raise UsageError(f"{path} is a task of SkyPilot, not a cluster", hint=hint, code="invalid-file")
    config = load_config(ClusterConfig, text, source=str(path)).value
    return LoadedCluster(config=_absolute(config, path.absolute().parent))


def _absolute(config: ClusterConfig, folder: Path) -> ClusterConfig:
    """Return the settings with absolute paths of this machine's files, as they are kept beyond this command."""
    files = {there: str(folder / Path(here).expanduser()) for there, here in config.files.items()}
    return replace(config, files=files)


def find_target(home: Home, word: str, *, name: str = "") -> ClusterTarget:
    """Return the cluster that a file describes, or that has a name; creates nothing.

    Args:
        word: a file's path, or the name of a cluster.
        name: replaces the name in the file.

    Raises:
        NotFoundError: there is no such file or cluster.
        SpecError: the file is refused.
    """
    if not is_file_name(word) and not Path(word).is_file():
        return ClusterTarget(home=find_cluster(home, name or word))
    loaded = load_cluster(Path(word))
    if name:
        loaded = replace(loaded, config=replace(loaded.config, name=name))
    return ClusterTarget(home=ClusterHome(home.path / "clusters" / loaded.config.name), loaded=loaded)
