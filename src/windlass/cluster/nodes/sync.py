"""Files of this machine on a cluster's nodes, and back: packed here, unpacked there, over the same connection as everything.

A folder's content goes into the folder there, as with Ray's `file_mounts`; what else is there stays. `exclude` and
`exclude_from` have rsync's meaning, since rsync itself applies them, on this machine.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from windlass.backends.site_shell import SiteShell
from windlass.cluster.config import ClusterConfig
from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.core.tar import open_stream
from windlass.supervise.node.files import INDEX, index_text

__all__ = ["copy_files", "fetch_path", "packed_files", "push_path"]

_COPY_S = 1800.0
_PIECE_BYTES = 16 << 20

# Unpacks standard input: $1 folder. `~` at the beginning stands for the user's home, which `cd` makes the current folder.
_UNPACK = 'cd && mkdir -p "$1" && tar -xpf - --no-same-owner -C "$1"'

# Packs $1 into a file of its own and prints its name and size; a folder as its content.
_PACK = """cd && umask 077 && [ -e "$1" ] || exit 44; t=$(mktemp) || exit 1; \
if [ -d "$1" ]; then tar -cf "$t" -C "$1" .; else tar -cf "$t" -C "$(dirname "$1")" "$(basename "$1")"; fi || exit 1; \
if [ -d "$1" ]; then printf 'folder '; else printf 'file '; fi; wc -c < "$t"; echo "$t\""""
_PIECE = 'tail -c +"$2" "$1" | head -c "$3"'
_MISSING = 44


def copy_files(config: ClusterConfig, shell: SiteShell) -> None:
    """Copy the `files` of a cluster's file to a node.

    Raises:
        NotFoundError: one of them is missing on this machine.
        UnreachableError: the node does not respond.
    """
    for there, here in config.files.items():
        push_path(Path(here), there, shell, exclude=config.exclude, exclude_from=config.exclude_from)


def push_path(
    here: Path, there: str, shell: SiteShell, *, exclude: Sequence[str] = (), exclude_from: Sequence[str] = ()
) -> None:
    """Copy a folder's content into a folder of a node, or a file to a path there.

    Args:
        there: path on the node; a relative one, or one that begins with `~/`, is below the user's home. A file goes into a
            folder that ends with `/`.
        exclude: patterns of rsync.
        exclude_from: names of files in the folder, and below, that list such patterns.
    """
    _check_here(here)
    with tempfile.NamedTemporaryFile(suffix=".tar") as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            folder = _add(archive, "", here, there, exclude, exclude_from)
        packed.flush()
        answer = shell.run(["sh", "-c", _UNPACK, "sh", folder], stdin=Path(packed.name), timeout_s=_COPY_S)
    if answer.code:
        message = f"{shell.name}: cannot copy {here} to {there}: {answer.err.strip()[-200:] or 'cut short'}"
        raise PreconditionError(message, hint="is its disk full, and may you write there?", code="copy-failed")


def _add(
    archive: tarfile.TarFile, prefix: str, here: Path, there: str, exclude: Sequence[str], exclude_from: Sequence[str]
) -> str:
    """Add a path to an archive, with a prefix of its members; return the folder into which they go."""
    target = _below_home(there)
    with _staged(here, exclude, exclude_from) as source:
        if source.is_dir():
            folder, members = target, [(each, each.name) for each in sorted(source.iterdir())]
        else:
            folder = target if there.endswith("/") else str(PurePosixPath(target).parent)
            members = [(source, here.name if there.endswith("/") else PurePosixPath(target).name)]
        for path, name in members:
            archive.add(path, prefix + name)
    return folder


@contextlib.contextmanager
def packed_files(config: ClusterConfig) -> Iterator[Path]:
    """Yield an archive of the `files` of a cluster's file, for nodes that the head makes; see `supervise.node.files`."""
    with tempfile.TemporaryDirectory() as scratch:
        inner, targets = Path(scratch) / "content.tar", []
        with tarfile.open(inner, "w", format=tarfile.PAX_FORMAT) as archive:
            for number, (there, here) in enumerate(config.files.items()):
                _check_here(Path(here))
                head = tarfile.TarInfo(str(number))
                head.type, head.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(head)
                targets.append(_add(archive, f"{number}/", Path(here), there, config.exclude, config.exclude_from))
        packed = Path(scratch) / "files.tar"
        with tarfile.open(packed, "w", format=tarfile.PAX_FORMAT) as archive, tarfile.open(inner) as content:
            text = index_text(targets)
            index = tarfile.TarInfo(INDEX)
            index.size = len(text)
            archive.addfile(index, io.BytesIO(text))
            for member in content:
                archive.addfile(member, content.extractfile(member) if member.isreg() else None)
        yield packed


def _check_here(here: Path) -> None:
    if not here.exists():
        hint = "correct `files` of the cluster"
        raise NotFoundError(f"no such file or folder: {here}", hint=hint, code="file-not-found")


def _below_home(there: str) -> str:
    """Return a path as a shell takes it whose current folder is the user's home."""
    path = there.removeprefix("~/") if there.startswith("~/") else "." if there in {"~", ""} else there
    if path.startswith("~"):
        raise UsageError(f"invalid path `{there}`", hint="write `~/...` or a path from `/`", code="invalid-value")
    return path


@contextlib.contextmanager
def _staged(here: Path, exclude: Sequence[str], exclude_from: Sequence[str]) -> Iterator[Path]:
    """Yield what is to be copied: the path itself or, with patterns, a copy that rsync made."""
    if not here.is_dir() or not (exclude or exclude_from):
        yield here
        return
    with tempfile.TemporaryDirectory() as folder:
        words = [f"--exclude={pattern}" for pattern in exclude]
        words += [f"--filter=dir-merge,- {name}" for name in exclude_from]
        try:
            subprocess.run(["rsync", "-a", *words, f"{here}/", folder], check=True, capture_output=True)
        except FileNotFoundError as error:
            message = "`exclude` needs rsync, which is not on the PATH of this machine"
            raise PreconditionError(
                message, hint="install rsync, or remove `exclude`", code="program-missing"
            ) from error
        except subprocess.CalledProcessError as error:
            last = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
            message = f"rsync cannot read {here}: {''.join(last)}"
            raise PreconditionError(message, hint="check `exclude` of the cluster", code="copy-failed") from error
        yield Path(folder)


def fetch_path(there: str, here: Path, shell: SiteShell) -> None:
    """Copy a folder's content of a node into a folder of this machine, or a file to a path here.

    Raises:
        NotFoundError: it is missing on the node.
    """
    target = _below_home(there)
    answer = shell.run(["sh", "-c", _PACK, "sh", target], timeout_s=_COPY_S)
    if answer.code == _MISSING:
        raise NotFoundError(f"{shell.name}: no such file or folder: {there}", code="file-not-found")
    if answer.code:
        message = f"{shell.name}: cannot read {there}: {answer.err.strip()[-200:]}"
        raise PreconditionError(message, hint="is its /tmp full?", code="copy-failed")
    first, packed = answer.out.strip().splitlines()
    kind, size = first.split()
    try:
        with tempfile.TemporaryFile() as file:
            while file.tell() < int(size):
                words = [packed, str(file.tell() + 1), str(_PIECE_BYTES)]
                piece = shell.run_bytes(["sh", "-c", _PIECE, "sh", *words], timeout_s=_COPY_S)
                if piece.code or not piece.out:
                    raise PreconditionError(f"{shell.name}: {there} is cut short", code="copy-failed")
                file.write(piece.out)
            file.seek(0)
            _unpack(file, here, is_folder=kind == "folder")
    finally:
        shell.run(["rm", "-f", packed])


def _unpack(file: BinaryIO, here: Path, *, is_folder: bool) -> None:
    """Unpack what a node sent; nothing is written outside the target."""
    is_into = is_folder or here.is_dir()
    folder = here if is_into else here.parent
    folder.mkdir(parents=True, exist_ok=True)
    with open_stream(file) as archive:
        for member in archive:
            if not is_into:
                member.name = here.name
            archive.extract(member, folder, filter="data")
