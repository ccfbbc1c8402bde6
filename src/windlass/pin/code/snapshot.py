"""Snapshots: the exact tree of a working folder, stored as one git commit under a ref of windlass's.

The tree holds tracked and untracked-but-not-ignored files byte for byte (no filters, no line-end conversion),
executable bits and symbolic links; nested repositories and submodules are included as plain folders, so one object
contains everything. Same tree, same commit: author and dates are fixed and there is no parent. Files that are
unchanged in the base commit are not checked again; a new file is rejected if it is large or named like a
credential.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import AccessError, PreconditionError
from windlass.core.phrases import count
from windlass.core.units import format_size
from windlass.pin.code.git import Git, Repository, open_repository, private_index, quote
from windlass.pin.code.pinned import SNAPSHOT_REFS
from windlass.pin.code.worktree import check_lfs, index_gitlinks, list_changes, list_converted, name_some

__all__ = ["MAX_FILE_BYTES", "Snapshot", "is_credential_name", "take_snapshot", "unstored_tree"]

MAX_FILE_BYTES = 100_000_000
_LIKE_CREDENTIALS = ("file looks like a credential and is", "files look like credentials and are")
_TOO_LARGE = ("file is over 100 MB and is", "files are over 100 MB and are")
_SNAPSHOT_DATE = "946684800 +0000"  # 2000-01-01; any fixed date works
_IDENTITY = {
    "GIT_AUTHOR_NAME": "windlass",
    "GIT_AUTHOR_EMAIL": "windlass@localhost",
    "GIT_AUTHOR_DATE": _SNAPSHOT_DATE,
    "GIT_COMMITTER_NAME": "windlass",
    "GIT_COMMITTER_EMAIL": "windlass@localhost",
    "GIT_COMMITTER_DATE": _SNAPSHOT_DATE,
}
_CREDENTIAL_NAMES = [
    ".env",
    ".env.*",
    "*.env",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "*.ppk",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "credentials*",
    ".credentials*",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".pypirc",
    ".git-credentials",
    ".htpasswd",
    ".dockercfg",
    "kubeconfig",
    "client_secret*.json",
    "service-account*.json",
    "service_account*.json",
    "secrets.yaml",
    "secrets.yml",
    "secrets.json",
    "secrets.toml",
    "*.agekey",
]
_HARMLESS_SUFFIXES = (
    ".example",
    ".sample",
    ".template",
    ".dist",
    ".md",
    ".rst",
    ".py",
    ".pyi",
    ".c",
    ".h",
    ".cc",
    ".go",
    ".rs",
    ".ts",
    ".js",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Stored snapshot: its commit, its tree, and the ref that keeps it."""

    commit: str
    tree: str
    ref: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Database:
    """Object folders that are used while a snapshot is taken: one for new objects, and others to read from."""

    target: Path
    borrowed: list[Path] = field(default_factory=list)

    def aim(self, git: Git) -> Git:
        # Each entry is quoted, so that a folder's name may hold a colon.
        borrowed = ":".join('"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"' for path in self.borrowed)
        return git.aimed(GIT_OBJECT_DIRECTORY=str(self.target), GIT_ALTERNATE_OBJECT_DIRECTORIES=borrowed)


def take_snapshot(repository: Repository, *, write: bool = True) -> Snapshot:
    """Store the exact working tree; idempotent. With `write=False` nothing is left behind.

    Raises:
        PreconditionError: a file is too large, looks like a credential, or is neither a file nor a link.
        AccessError: a file cannot be read.
    """
    with _database(repository, write=write) as database:
        tree, changes = _build(repository, database)
        git = database.aim(repository.aimed)
        if repository.subdir and not git.has(f"{tree}:{repository.subdir}"):
            raise PreconditionError(
                f"the folder {repository.subdir} is ignored or empty, so it is not in a snapshot",
                hint=f"remove it from .gitignore in {repository.git.folder}",
                code="code-not-in-commit",
            )
        check_lfs(git, tree)
        commit = git.aimed(**_IDENTITY).text("commit-tree", tree, "-m", "windlass snapshot").strip()
        ref = SNAPSHOT_REFS + tree
        if write and repository.aimed.call("rev-parse", "-q", "--verify", ref).stdout.strip() != commit:
            _store(repository, git, commit)
            repository.aimed.text("update-ref", ref, commit)
    return Snapshot(commit=commit, tree=tree, ref=ref, changes=tuple(changes))


@contextlib.contextmanager
def unstored_tree(repository: Repository) -> Iterator[tuple[Git, str]]:
    """Yield git on a database with the exact working tree, and that tree's id; nothing is left behind."""
    with _database(repository, write=False) as database:
        tree, _ = _build(repository, database)
        yield database.aim(repository.aimed), tree


def is_credential_name(path: str) -> bool:
    """Return True if a file name is typical of files with keys or passwords."""
    name = path.rpartition("/")[2].lower()
    return not name.endswith(_HARMLESS_SUFFIXES) and any(
        fnmatch.fnmatchcase(name, pattern) for pattern in _CREDENTIAL_NAMES
    )


@contextlib.contextmanager
def _database(repository: Repository, *, write: bool) -> Iterator[_Database]:
    """Yield a temporary object database; its objects are stored only once all are accepted."""
    if write and not os.access(repository.objects, os.W_OK):
        raise AccessError(
            f"cannot write into the repository's objects: {repository.objects}",
            hint="commit there, or clone the repository and launch from the clone",
            code="not-writable",
        )
    if write:
        (repository.objects / "pack").mkdir(exist_ok=True)
    # On the repository's own disk, as git does for incoming pushes; a plan must leave even a read-only repository alone.
    place = repository.objects if write else None
    with tempfile.TemporaryDirectory(prefix="tmp_objdir-windlass-", dir=place) as temporary:
        yield _Database(target=Path(temporary), borrowed=[repository.objects])


def _store(repository: Repository, git: Git, commit: str) -> None:
    """Atomically store one pack of the objects that the commit needs and the repository lacks."""
    known = repository.aimed.lines(
        "for-each-ref", "--count=20", "--sort=-creatordate", "--format=%(objectname)", SNAPSHOT_REFS
    )
    head = repository.aimed.call("rev-parse", "-q", "--verify", "HEAD^{commit}").stdout.split()
    revisions = "".join(f"{each}\n" for each in [commit, *(f"^{name}" for name in (*head, *known))]).encode()
    git.text("pack-objects", "--revs", "-q", str(repository.objects / "pack" / "pack"), stdin=revisions)


def _build(repository: Repository, database: _Database) -> tuple[str, list[str]]:
    """Write one repository's tree; return its id, and the names that changed."""
    folder = repository.git.folder
    with private_index(repository) as own:
        changes = list_changes(own, is_exact=True)
        links = {link.path for link in index_gitlinks(own)}
        nested = sorted(links | {name.rstrip("/") for name in changes if name.endswith("/")})
        files = [name for name in changes if name.rstrip("/") not in nested]
        _refuse(folder, files)
        attributes = repository.common_dir / "info" / "attributes"
        converted = [name for name in list_converted(own, attributes) if name not in files]
        git = database.aim(own)
        _update_index(git, files + converted, removed=[name for name in nested if name in links])
        for name in nested:
            _graft(git, folder / name, name, database)
        return database.aim(own).text("write-tree").strip(), changes


def _graft(git: Git, folder: Path, name: str, database: _Database) -> None:
    """Add a nested repository's exact tree below `name`."""
    nested = open_repository(folder) if os.path.lexists(folder / ".git") else None
    if nested is None:
        raise PreconditionError(
            f"submodule `{name}` is not checked out",
            hint="git submodule update --init --recursive",
            code="submodule-missing",
        )
    database.borrowed.append(nested.objects)
    tree, _ = _build(nested, database)
    database.aim(git).text("read-tree", f"--prefix={name}/", tree)


def _refuse(folder: Path, names: list[str]) -> None:
    """Raise if any of the files must not be stored."""
    present = [name for name in names if os.path.lexists(folder / name)]
    secrets = [name for name in present if is_credential_name(name)]
    if secrets:
        raise PreconditionError(
            f"{count(len(secrets), *_LIKE_CREDENTIALS)} left out of the snapshot:  {name_some(secrets)}",
            hint="list them in .gitignore (keep values that a run needs with `windlass secret set`)",
            code="snapshot-refused",
        )
    large = []
    for name in present:
        status = os.lstat(folder / name)
        if stat.S_ISREG(status.st_mode) and status.st_size > MAX_FILE_BYTES:
            large.append(f"{name} ({format_size(status.st_size // 2**20 * 2**20)})")
    if large:
        raise PreconditionError(
            f"{count(len(large), *_TOO_LARGE)} left out of the snapshot:  {name_some(large)}",
            hint="list them in .gitignore, and in `data:` if the run needs them",
            code="snapshot-refused",
        )


def _update_index(git: Git, names: list[str], *, removed: list[str]) -> None:
    """Set the index entries of `names` to the exact bytes on disk."""
    gone, regular, links = list(removed), [], []
    for name in names:
        mode = os.lstat(git.folder / name).st_mode if os.path.lexists(git.folder / name) else 0
        if stat.S_ISLNK(mode):
            links.append(name)
        elif stat.S_ISREG(mode):
            regular.append((name, "100755" if mode & stat.S_IXUSR else "100644"))
        elif mode == 0 or stat.S_ISDIR(mode):
            gone.append(name)
        else:
            raise PreconditionError(
                f"{git.folder / name} is neither a file, a folder nor a link",
                hint=f"remove it or list it in .gitignore: {name}",
                code="special-file",
            )
    entries = [("0", "0" * 40, name) for name in gone]
    blobs = _hash_files(git, [name for name, _ in regular])
    entries += [(mode, blob, name) for (name, mode), blob in zip(regular, blobs, strict=True)]
    entries += [("120000", blob, name) for name, blob in zip(links, _hash_links(git, links), strict=True)]
    if entries:
        records = (f"{mode} {blob}\t".encode() + os.fsencode(name) + b"\0" for mode, blob, name in entries)
        git.text("update-index", "-z", "--index-info", stdin=b"".join(records))


def _hash_files(git: Git, names: list[str]) -> list[str]:
    for name in names:
        if not os.access(git.folder / name, os.R_OK):
            raise AccessError(
                f"cannot read {git.folder / name}",
                hint="make it readable, or list it in .gitignore",
                code="file-unreadable",
            )
    if not names:
        return []
    return git.lines(
        "hash-object", "-w", "--no-filters", "--stdin-paths", stdin=b"\n".join(quote(name) for name in names) + b"\n"
    )


def _hash_links(git: Git, names: list[str]) -> list[str]:
    """Store the targets of symbolic links, using temporary files, since git would follow the links."""
    with tempfile.TemporaryDirectory(prefix="windlass-links-") as temporary:
        paths = []
        for number, name in enumerate(names):
            path = Path(temporary) / str(number)
            path.write_bytes(os.fsencode(os.readlink(git.folder / name)))
            paths.append(str(path))
        return _hash_files(git, paths)
