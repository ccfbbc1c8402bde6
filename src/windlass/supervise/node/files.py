"""Files of a cluster's file on a machine that the head made: `windlass.pyz node-files FOLDER`, the first command of its set-up.

The client packs all of them into one archive on the head, `files.tar`: first `files.json`, a list of destinations, then the
content of the N-th below `N/`. A folder's content goes into the folder there.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import BinaryIO

from windlass.core.errors import PreconditionError
from windlass.core.json_text import decode_json
from windlass.core.tar import open_stream
from windlass.supervise.node.spec import NodeFolder
from windlass.supervise.node.store_client import StoreClient, StoreError

__all__ = ["INDEX", "fetch_files", "index_text", "setup_line", "unpack_files"]

INDEX = "files.json"
"""First member of the archive."""

_MAX_INDEX_BYTES = 4 << 20
_TRANSFER_S = 600.0


def setup_line(cluster: str) -> str:
    """Return the shell command that a node runs before its set-up; it finds its folder by its token."""
    folder = f'"$HOME/.windlass/clusters/{cluster}/$WINDLASS_NODE"'
    return f"python3 -I -S {folder}/windlass.pyz node-files {folder}"


def fetch_files(path: Path) -> int:
    """Fetch the archive from the head's store, and unpack it; the exit code is 1 if that fails."""
    spec = NodeFolder(path).read_spec()
    try:
        content = StoreClient(spec.store, spec.auth_token, timeout_s=_TRANSFER_S).call("GET", "/files")
        unpack_files(io.BytesIO(content), Path(os.path.expanduser("~")))
    except (StoreError, PreconditionError, tarfile.TarError, OSError, ValueError) as error:
        sys.stderr.write(f"cannot copy `files` from the head: {error}\n")
        return 1
    return 0


def unpack_files(source: BinaryIO, home: Path) -> None:
    """Unpack the archive; relative destinations are below the user's home.

    Raises:
        PreconditionError: it is not such an archive (`copy-failed`).
    """
    targets: list[str] | None = None
    with open_stream(source) as archive:
        if hasattr(tarfile, "fully_trusted_filter"):  # it came authenticated from the head
            archive.extraction_filter = tarfile.fully_trusted_filter
        for member in archive:
            if targets is None:
                targets = _index(archive, member)
                continue
            number, _, name = member.name.partition("/")
            if not number.isdigit() or int(number) >= len(targets) or ".." in name.split("/"):
                raise PreconditionError(f"unexpected member `{member.name}`", code="copy-failed")
            target = home / targets[int(number)]
            target.mkdir(parents=True, exist_ok=True)
            if name:
                archive.extract(_own(member, name, number), str(target))


def _own(member: tarfile.TarInfo, name: str, number: str) -> tarfile.TarInfo:
    """Return a member under its name in the destination, owned by this user."""
    member.name, member.uid, member.gid = name, os.geteuid(), os.getegid()
    member.uname = member.gname = ""
    if member.islnk():
        member.linkname = member.linkname.partition(f"{number}/")[2]
    return member


def _index(archive: tarfile.TarFile, member: tarfile.TarInfo) -> list[str]:
    file = archive.extractfile(member) if member.name == INDEX and member.size <= _MAX_INDEX_BYTES else None
    if file is None:
        raise PreconditionError("no list of destinations", code="copy-failed")
    return [str(each) for each in decode_json(file.read())]


def index_text(targets: list[str]) -> bytes:
    """Return the content of the index."""
    return json.dumps(targets).encode()
