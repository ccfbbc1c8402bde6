"""The commit that a job fetches, from the local repository or from one that exists only on a server."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, PreconditionError, UnreachableError, UsageError
from windlass.core.process import Completed
from windlass.pin.code.git import Git, Repository, last_lines, open_repository

__all__ = ["Checkout", "checkout_of", "is_public", "read_remote", "repository_of"]

_GITHUB = re.compile(r"(?:.*github\.com)[/:]+(?P<path>[^/]+/[^/]+?)(?:\.git)?/*\Z")
_SHORT = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+\Z")
_OTHER = re.compile(r"(?:[a-z+]+://)?(?:[^@/]*@)?[^/:]*[/:]+(?P<path>.+?)(?:\.git)?/*\Z")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z|[0-9a-f]{64}\Z")
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """The commit that a job fetches, with facts about it that are known locally.

    Attributes:
        repo: `account/name`.
        url: address that the job fetches from.
        ref: the commit.
        branch: None if the commit is on no branch with a remote branch.
        is_dirty: whether tracked files differ from the commit.
        files: names at the top level of its tree; None if unknown.
        is_public: whether it can be fetched without a token; None if not checked.
    """

    repo: str
    url: str
    ref: str
    branch: str | None = None
    is_dirty: bool = False
    files: frozenset[str] | None = None
    is_public: bool | None = None

    @property
    def is_on_github(self) -> bool:
        """Return True if the job can derive the repository's address from `repo`."""
        return self.url == f"https://github.com/{self.repo}"

    def has(self, *names: str) -> bool:
        """Return True if one of these files is at the top level of the tree, and False if the tree is unknown."""
        return self.files is not None and not self.files.isdisjoint(names)


def repository_of(url: str) -> tuple[str, str]:
    """Return `account/name` and the address to fetch from.

    Raises:
        UsageError: it is not the address of a repository.
    """
    match = _GITHUB.match(url)
    if match is not None or _SHORT.match(url):
        repo = match["path"] if match is not None else url
        return repo, f"https://github.com/{repo}"
    other = _OTHER.match(url)
    if other is None or url.startswith("-"):
        hint = "account/name, or the address of a git server"
        raise UsageError(f"`{url}` is not the address of a repository", hint=hint, code="invalid-value")
    return "/".join(other["path"].strip("/").split("/")[-2:]), url


def checkout_of(
    folder: Path, *, ref: str | None, branch: str | None, is_online: bool, must_be_pushed: bool = True
) -> Checkout:
    """Return the checkout of the repository at `folder`, at `ref` or the last commit.

    Contacts the remote if `is_online`.

    Raises:
        PreconditionError: not the root of a repository, no remote, or the commit is not on it.
        NotFoundError: no such commit.
    """
    repository = _root(folder)
    git = repository.git
    remote = _remote(git)
    repo, url = _address(git, remote)
    commit = _resolve(git, ref, is_online=is_online)
    if must_be_pushed:
        _check_pushed(git, remote, commit, is_online=is_online)
    tracked = git.call("rev-parse", "--abbrev-ref", "--symbolic-full-name", "@{upstream}")
    active = tracked.stdout.strip().partition("/")[2] if tracked.code == 0 else ""
    listed = git.call("ls-tree", "--name-only", "-z", commit)
    return Checkout(
        repo=repo,
        url=url,
        ref=commit,
        branch=branch or active or None,
        is_dirty=bool(git.lines("status", "--porcelain", "--untracked-files=no")),
        files=frozenset(listed.stdout.split("\0")) if listed.code == 0 else None,
    )


def read_remote(address: str, *, ref: str | None, branch: str | None, is_online: bool) -> Checkout:
    """Return a commit of a remote repository.

    Queries the server for a branch's commit and, if `is_online`, for the commit's files.

    Raises:
        UsageError: neither `ref` nor `branch`.
        UnreachableError: the server does not respond within 30 s.
        NotFoundError: no such branch.
    """
    repo, url = repository_of(address)
    if ref is None and branch is None:
        hint = f"add `--branch main`, or `--ref COMMIT`, to `--remote {address}`"
        raise UsageError("`--remote` needs a branch or a commit", hint=hint, code="missing-argument")
    with tempfile.TemporaryDirectory(prefix="windlass-remote-") as temporary:
        git = Git(folder=Path(temporary))
        commit = ref or _branch_tip(git, url, branch or "")
        files = _remote_files(git, url, commit) if is_online else None
    return Checkout(repo=repo, url=url, ref=commit, branch=branch, files=files)


def is_public(url: str) -> bool:
    """Return True if a repository can be read without credentials.

    Queries its server, for at most 30 s.

    Raises:
        UnreachableError: the server does not respond.
    """
    with tempfile.TemporaryDirectory(prefix="windlass-remote-") as temporary:
        anonymous = {"HOME": temporary, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ASKPASS": "true", "SSH_ASKPASS": "true"}
        git = Git(folder=Path(temporary)).aimed(**anonymous)  # no key, no .netrc, no rewritten addresses
        done = git.set("credential.helper=").call("ls-remote", url, "HEAD", timeout_s=_TIMEOUT_S)
    refused = ("could not read Username", "Authentication failed", "not found", "403", "Permission denied")
    if done.code == 0 or any(word in done.stderr for word in refused):
        return done.code == 0
    raise _silent(url, done)


def _root(folder: Path) -> Repository:
    repository = open_repository(folder)
    if repository is None or repository.toplevel is None:
        hint = "go to the root of a git repository, or name one: `--remote account/name --branch main`"
        raise PreconditionError(f"{folder} is not in a git repository", hint=hint, code="no-commit")
    if repository.subdir:
        hint = f"cd {repository.toplevel}"
        message = f"{folder} is not the root of its repository, where the job starts"
        raise PreconditionError(message, hint=hint, code="precondition")
    return repository


def _remote(git: Git) -> str:
    remotes = git.lines("remote")
    if not remotes:
        hint = "git remote add origin URL, and push"
        raise PreconditionError(
            "the repository has no remote for a job to fetch from", hint=hint, code="commit-not-pushed"
        )
    return "origin" if "origin" in remotes else remotes[0]


def _address(git: Git, remote: str) -> tuple[str, str]:
    """Return the address that the job fetches from: for GitHub as written, otherwise as git resolves it."""
    written = git.text("config", "--get", f"remote.{remote}.url").strip()
    if _GITHUB.match(written):
        return repository_of(written)
    return repository_of(git.text("remote", "get-url", remote).strip())


def _resolve(git: Git, ref: str | None, *, is_online: bool) -> str:
    found = git.call("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref or 'HEAD'}^{{commit}}")
    if found.code == 0:
        return found.stdout.strip()
    if ref is None:
        message = "the repository has no commit"
        raise PreconditionError(message, hint="git commit, and push", code="no-commit")
    if _COMMIT.match(ref) and is_online:
        return ref  # the server may have it; `_check_pushed` checks
    hint = "git fetch, or use a commit that this clone has"
    raise NotFoundError(f"`--ref {ref}` is not a commit of this repository", hint=hint, code="revision-not-found")


def _check_pushed(git: Git, remote: str, commit: str, *, is_online: bool) -> None:
    """Raise for a commit that the job cannot fetch; the last fetched or pushed state is checked first."""
    known = git.call("branch", "--remotes", "--contains", commit)
    if known.code == 0 and known.stdout.strip():
        return
    if is_online:
        done = git.call("ls-remote", remote, timeout_s=_TIMEOUT_S)
        if done.code != 0:
            raise _silent(remote, done)
        if any(line.startswith(commit) for line in done.stdout.split("\n")):
            return
        with tempfile.TemporaryDirectory(prefix="windlass-remote-") as temporary:
            probe = Git(folder=Path(temporary))
            url = git.text("remote", "get-url", remote).strip()
            if _fetch(probe, url, commit).code == 0:
                return
    message = f"the commit {commit[:12]} is not on the remote `{remote}`, where the job fetches it"
    raise PreconditionError(message, hint="git push", code="commit-not-pushed")


def _branch_tip(git: Git, url: str, branch: str) -> str:
    done = git.call("ls-remote", "--exit-code", url, f"refs/heads/{branch}", timeout_s=_TIMEOUT_S)
    if done.code == 2:
        raise NotFoundError(
            f"{url} has no branch `{branch}`", hint="write another `--branch`", code="revision-not-found"
        )
    if done.code != 0:
        raise _silent(url, done)
    return done.stdout.split()[0]


def _remote_files(git: Git, url: str, commit: str) -> frozenset[str]:
    done = _fetch(git, url, commit)
    if done.code != 0:
        message = f"{url} does not serve commit {commit[:12]}: {last_lines(done.stderr, 1)}"
        raise NotFoundError(message, hint="write another `--ref`", code="revision-not-found")
    return frozenset(git.text("ls-tree", "--name-only", "-z", "FETCH_HEAD").split("\0"))


def _fetch(git: Git, url: str, commit: str) -> Completed:
    git.text("init", "--quiet", "--bare", ".")
    return git.call("fetch", "--quiet", "--depth=1", "--filter=blob:none", url, commit, timeout_s=4 * _TIMEOUT_S)


def _silent(where: str, done: Completed) -> UnreachableError:
    message = f"the remote `{where}` does not respond: {last_lines(done.stderr, 1) or f'code {done.code}'}"
    return UnreachableError(message, hint="run `git ls-remote` yourself, or use `--dry-run`", code="remote-unreachable")
