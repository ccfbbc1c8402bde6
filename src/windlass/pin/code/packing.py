"""Pinned commit as one file of git objects, for a machine that has no clone of its repository.

The pack has the commit and its whole tree, not its history; equal commits give equal bytes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.files import lock
from windlass.pin.code.checkouts import find_repository
from windlass.pin.code.git import Git, last_lines
from windlass.pin.code.pinned import CodePin
from windlass.pin.code.pinning import ensure_store

__all__ = ["IMPORTED_REFS", "author_of", "pack_commit", "take_in_commit"]

IMPORTED_REFS = "refs/windlass/imported/"


def pack_commit(pin: CodePin, folder: Path, target: Path, *, store: Path | None = None) -> None:
    """Write the objects of a pinned commit to the file `target`.

    Args:
        folder, store: as for `checkout`.

    Raises:
        NotFoundError: the commit is in neither repository.
        PreconditionError: git cannot read its tree.
    """
    repository, _ = find_repository(pin, folder.expanduser().absolute(), store)
    git = repository.aimed.set("pack.threads=1", "pack.compression=6", "pack.window=0", "pack.packSizeLimit=0")
    objects = [line.partition(" ")[0] for line in git.lines("rev-list", "--objects", "--no-walk", pin.commit)]
    with tempfile.TemporaryDirectory(prefix=".windlass-pack-", dir=target.parent) as temporary:
        names = "".join(f"{each}\n" for each in objects).encode()
        prefix = str(Path(temporary) / "code")
        made = git.text(
            "pack-objects", "-q", "--window=0", "--no-reuse-delta", "--no-reuse-object", prefix, stdin=names
        ).strip()
        os.replace(f"{prefix}-{made}.pack", target)


def author_of(pin: CodePin, folder: Path, *, store: Path | None = None) -> str:
    """Return the name of the commit's author; empty if there is none, as in a snapshot."""
    if pin.kind != "commit":
        return ""
    try:
        repository, _ = find_repository(pin, folder.expanduser().absolute(), store)
    except (NotFoundError, PreconditionError):
        return ""
    return repository.aimed.call("show", "-s", "--no-show-signature", "--format=%an", pin.commit).stdout.strip()


def take_in_commit(pin: CodePin, pack: Path, store: Path) -> None:
    """Add a pack's objects to windlass's repository as a shallow commit; idempotent.

    Raises:
        PreconditionError: the pack is broken, or contains another commit or tree (`archive-damaged`).
    """
    with lock(store.with_name(f"{store.name}.lock")):
        ensure_store(store)
        git = Git(folder=store).aimed(GIT_DIR=str(store))
        with tempfile.TemporaryDirectory(prefix="tmp_objdir-windlass-", dir=store / "objects") as temporary:
            copy = Path(temporary) / "code.pack"
            shutil.copyfile(pack, copy)
            done = git.call("index-pack", str(copy))
            if done.code:
                raise _broken(pin, last_lines(done.stderr, 1))
            (store / "objects" / "pack").mkdir(exist_ok=True)
            for suffix in (".pack", ".idx"):  # git looks for the index, so it is written last
                name = f"pack-{done.stdout.split()[-1]}{suffix}"
                os.replace(copy.with_suffix(suffix), store / "objects" / "pack" / name)
        commit = git.read_commit(pin.commit)
        if commit is None or (pin.tree and commit.tree != pin.tree):
            raise _broken(pin, "it has another commit")
        lacking = git.call("rev-list", "--objects", "--no-walk", "--missing=print", pin.commit)
        if lacking.code or any(line.startswith("?") for line in lacking.stdout.split("\n")):
            raise _broken(pin, "some of its files are missing")
        _mark_shallow(git, store, pin.commit)
        git.text("update-ref", IMPORTED_REFS + pin.commit, pin.commit)


def _broken(pin: CodePin, said: str) -> PreconditionError:
    message = f"the code in the archive is not commit {pin.commit[:12]}: {said}"
    return PreconditionError(message, hint="copy the archive again from its source", code="archive-damaged")


def _mark_shallow(git: Git, store: Path, commit: str) -> None:
    """Mark a commit's parents as absent, so that git does not request them. Source: gitrepository-layout(5), shallow."""
    parents = git.call("cat-file", "commit", commit).stdout.partition("\n\n")[0].count("\nparent ")
    known = (store / "shallow").read_text().split() if (store / "shallow").exists() else []
    if parents and commit not in known:
        temporary = store / f"shallow.{os.getpid()}.tmp"
        temporary.write_text("".join(f"{each}\n" for each in [*known, commit]))
        os.replace(temporary, store / "shallow")
