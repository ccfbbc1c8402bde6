"""Storage for a run at a Beaker site, and how this machine reaches it.

`LOCAL`: the jobs' storage is mounted on this machine under the same path and holds WINDLASS_HOME. `SSH`: a host with
that storage is reached over ssh, like the login node of a Slurm site. `DATASETS`: files are uploaded as a dataset.
"""

from __future__ import annotations

import os
import pwd
from enum import Enum
from pathlib import Path, PurePosixPath

from windlass.sites.profile import Profile

__all__ = ["Storage", "state_of_jobs", "storage_of", "uses_datasets"]


class Storage(Enum):
    """Ways in which a client can reach a run's files."""

    LOCAL = "local"
    SSH = "ssh"
    DATASETS = "datasets"


def storage_of(profile: Profile, home: Path) -> Storage:
    """Return how a client reaches a site's files; `home` is WINDLASS_HOME."""
    if profile.ssh:
        return Storage.SSH
    shared = _shared(profile)
    is_on_it = bool(shared) and home.resolve().is_relative_to(Path(shared).resolve())
    return Storage.LOCAL if is_on_it else Storage.DATASETS


def uses_datasets(profile: Profile, home: Path) -> bool:
    """Return whether the files of runs are transferred as datasets."""
    return profile.kind == "beaker" and storage_of(profile, home) is Storage.DATASETS


def state_of_jobs(profile: Profile) -> PurePosixPath:
    """Return the path of windlass's folder inside jobs: on their storage, otherwise in their results."""
    return PurePosixPath(_shared(profile) or profile.beaker.results) / "windlass"


def _shared(profile: Profile) -> str:
    return profile.fs.shared.replace("${user}", pwd.getpwuid(os.geteuid()).pw_name)
