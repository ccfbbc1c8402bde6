"""Garbage collection at a site: mirrored runs, their checkpoints, and environments.

The site checks each removal again (`windlass.supervise.remote.gc`). All functions block and are idempotent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from windlass.backends.site_shell import shell_for
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.launcher.gc.removable import Kept, Removal, needs
from windlass.launcher.remote.client import RemoteClient
from windlass.launcher.remote.mirror import Mirror, mirror_of, state_at_site
from windlass.plan.plan import Plan
from windlass.runs.home import Home
from windlass.runs.store import RunFolder
from windlass.sites.profile import Profile
from windlass.supervise.archive import ensure_archive
from windlass.supervise.remote.checkpoint_files import CheckpointFiles

__all__ = ["SiteCheckpoints", "checkpoints_at_site", "collect_environments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCheckpoints:
    """Checkpoints of one task at its site.

    Attributes:
        site: name of the site.
        held: the checkpoints, oldest first, with their paths at the site.
        whole: the newest checkpoint whose files have their recorded sizes, or None.
        sizes: bytes on the site's disk.
    """

    mirror: Mirror
    site: str
    task: str
    held: tuple[CheckpointFiles, ...]
    whole: CheckpointFiles | None
    sizes: Mapping[Path, int]

    def remove(self, chosen: Sequence[CheckpointFiles]) -> None:
        """Remove the chosen checkpoints; all of them are hidden before the first is deleted."""
        names = [each.path.relative_to(_folder(self.mirror, self.task)).as_posix() for each in chosen]
        header = {"what": "checkpoints", "root": str(self.mirror.root), "task": self.task, "names": names}
        self.mirror.transport.request("clear", header)


def checkpoints_at_site(run: RunFolder, task: str, pattern: str, home: Home) -> SiteCheckpoints | None:
    """Return a task's checkpoints at its site; None for a local run.

    Raises:
        UnreachableError: the site cannot be reached.
        PreconditionError: the site has no server that can remove them.
    """
    plan = Plan.from_data(run.plan())
    mirror = mirror_of(run, plan, home)
    if mirror is None:
        return None
    if not mirror.transport.has_server:
        message = f"cannot remove checkpoints at {plan.site.name}: windlass has no ssh access to the site"
        raise PreconditionError(message, hint="set `ssh` in the site's profile", code="site-without-ssh")
    header = {"what": "held", "root": str(mirror.root), "task": task, "pattern": pattern}
    answer, _ = mirror.transport.request("clear", header)
    folder = _folder(mirror, task)
    held = {
        name: CheckpointFiles(path=folder / name, step=step, at=at, is_committed=is_committed)
        for name, step, at, is_committed, _ in answer["held"]
    }
    sizes = {folder / name: num_bytes for name, *_, num_bytes in answer["held"]}
    return SiteCheckpoints(
        mirror=mirror,
        site=plan.site.name,
        task=task,
        held=tuple(held.values()),
        whole=held.get(answer["whole"]),
        sizes=sizes,
    )


def _folder(mirror: Mirror, task: str) -> Path:
    return Path(mirror.root / "checkpoints" / task)


def collect_environments(
    home: Home, profile: Profile, older_than_s: float, *, is_dry: bool
) -> Iterator[Removal | Kept]:
    """Remove a site's environments that no unfinished run needs and that were not used recently.

    Raises:
        PreconditionError: the site has no windlass folder.
        UnreachableError: the site cannot be reached.
    """
    if profile.kind == "beaker" and not profile.ssh:
        message = f"site {profile.name} has no environments: Beaker jobs run in their image"
        raise PreconditionError(message, hint="windlass gc --images", code="site-no-shared-folder")
    shell = shell_for(profile)
    state = state_at_site(profile, shell)
    client = RemoteClient(shell, state, ensure_archive(home.cache / "archives"), profile.env.python)
    header = {"what": "environments", "state": str(state), "older_than_s": older_than_s}
    there, _ = client.request("clear", {**header, "keep": {}, "is_dry": True})
    texts = needs(home)
    users = {name: [run for run, text in texts.items() if name in text] for name, *_ in there["environments"]}
    keep = {name: f"{runs[0]} may continue with it" for name, runs in users.items() if runs}
    seen, _ = client.request("clear", {**header, "keep": keep, "is_dry": is_dry})
    for name, num_bytes, why in seen["environments"]:
        path = Path(PurePosixPath(state) / "envs" / name)
        if why:
            yield Kept(path=path, why=why, site=profile.name)
        else:
            yield Removal(kind="environment", path=path, num_bytes=num_bytes, site=profile.name)
