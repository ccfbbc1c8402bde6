"""The commit that a configuration launches, as plain fields.

Every process that builds the configuration computes it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from windlass.compat.gantry.checkout import Checkout, checkout_of, repository_of
from windlass.compat.olmo_core.config_base import Base
from windlass.core.dataclass import dataclass
from windlass.core.errors import WindlassError

__all__ = ["GitRepoState"]


@dataclass
class GitRepoState(Base):
    """Commit of a repository, which is checked only when it is launched."""

    repo: str
    repo_url: str
    ref: str
    branch: str | None = None

    @classmethod
    def from_env(
        cls,
        ref: str | None = None,
        branch: str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> GitRepoState:
        """Return the state of the local repository.

        In a job without one, this is the state that the launch stored in variables.

        Raises:
            PreconditionError: neither exists.
        """
        environ = os.environ if environ is None else environ
        try:
            found = checkout_of(folder or Path.cwd(), ref=ref, branch=branch, is_online=False, must_be_pushed=False)
        except WindlassError:
            if "GITHUB_REPO" not in environ or "GIT_REF" not in environ:
                raise
            repo, url = repository_of(environ.get("WINDLASS_GIT_URL") or environ["GITHUB_REPO"])
            return cls(repo=repo, repo_url=url, ref=environ["GIT_REF"], branch=environ.get("GIT_BRANCH"))
        return cls(repo=found.repo, repo_url=found.url, ref=found.ref, branch=found.branch)

    @property
    def is_dirty(self) -> bool:
        """Return True if tracked files differ from the commit that was checked out."""
        found = checkout_of(Path.cwd(), ref=None, branch=None, is_online=False, must_be_pushed=False)
        return found.is_dirty

    def to_checkout(self, *, folder: Path | None = None, is_online: bool = False) -> Checkout:
        """Return the checkout that a launch needs.

        Raises:
            WindlassError: the commit is missing locally or on the remote.
        """
        found = checkout_of(folder or Path.cwd(), ref=self.ref, branch=self.branch, is_online=is_online)
        if found.url == self.repo_url:
            return found
        repo, url = repository_of(self.repo_url)
        return Checkout(
            repo=repo, url=url, ref=self.ref, branch=self.branch, is_dirty=found.is_dirty, files=found.files
        )
