"""Storage of a run at a Beaker site, and how this machine reaches it.

`LOCAL`: this machine has the jobs' storage under the same path, and WINDLASS_HOME is on it. `SSH`: a host that has it
is reached over ssh, as the login node of a Slurm site is. `DATASETS`: neither; files are uploaded as a dataset.
"""

from __future__ import annotations

import os
import pwd
from enum import Enum
from pathlib import Path, PurePosixPath

from windlass.sites import Profile

__all__ = ["Storage", "state_of_jobs", "storage_of", "uses_datasets"]


class Storage(Enum):
    """Way of a client to the files of a run."""

    LOCAL = "local"
    SSH = "ssh"
    DATASETS = "datasets"


def storage_of(profile: Profile, home: Path) -> Storage:
    """Return how a site's files are reached; `home` is WINDLASS_HOME."""
    if profile.ssh:
        return Storage.SSH
    shared = _shared(profile)
    is_on_it = bool(shared) and home.resolve().is_relative_to(Path(shared).resolve())
    return Storage.LOCAL if is_on_it else Storage.DATASETS


def uses_datasets(profile: Profile, home: Path) -> bool:
    """Return whether files of runs travel as datasets."""
    return profile.kind == "beaker" and storage_of(profile, home) is Storage.DATASETS


def state_of_jobs(profile: Profile) -> PurePosixPath:
    """Windlass's folder as jobs see it: on their storage, or in the results if there is none."""
    return PurePosixPath(_shared(profile) or profile.beaker.results) / "windlass"


def _shared(profile: Profile) -> str:
    return profile.fs.shared.replace("${user}", pwd.getpwuid(os.geteuid()).pw_name)
