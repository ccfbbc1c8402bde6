"""Check, before a launch, that a site's nodes can see the folder with its runs."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.core.errors import PreconditionError
from windlass.core.files import file_system

if TYPE_CHECKING:
    from windlass.plan.site import Site
    from windlass.runs.home import Home

__all__ = ["check_state_folder", "state_folder_problem"]

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


def check_state_folder(site: Site, home: Home) -> None:
    """Raise if a site's nodes cannot see WINDLASS_HOME.

    Raises:
        PreconditionError: `fs.shared` is not set, or WINDLASS_HOME is visible only on this machine.
    """
    problem = state_folder_problem(site, home)
    if problem is not None:
        raise problem


def state_folder_problem(site: Site, home: Home) -> PreconditionError | None:
    """Return the error that `check_state_folder` would raise, or None."""
    profile = site.profile
    if profile is None:
        return None
    if profile.ssh and not profile.fs.shared:
        hint = f"set `fs.shared` in its profile: windlass site show {profile.name}"
        return PreconditionError(f"site {profile.name} has no shared folder", hint=hint, code="site-no-shared-folder")
    if profile.ssh or profile.kind == "beaker":
        return None
    user = pwd.getpwuid(os.geteuid()).pw_name
    shared, local = (text.replace("${user}", user) for text in (profile.fs.shared, profile.fs.node_local))
    if shared and _is_below(home.path, shared):
        return None
    kind = file_system(home.path)
    why = f"it is in the memory of this machine ({kind})" if kind in _IN_MEMORY else ""
    if not why and shared and local and _is_below(home.path, local):
        why = f"every node has its own {local} (fs.node_local)"
    if not why:
        return None
    where = f"{shared}/windlass" if shared else "/a/folder/that/all/nodes/see"
    message = f"the nodes of `{profile.name}` cannot see WINDLASS_HOME={home.path}: {why}"
    return PreconditionError(message, hint=f"export WINDLASS_HOME={where}", code="home-not-shared")


def _is_below(path: Path, folder: str) -> bool:
    return path.resolve().is_relative_to(Path(folder).resolve())
