"""Archives of a few kilobytes that tarfile by itself does not survive."""

from __future__ import annotations

import io
import tarfile

import pytest

from windlass.core.tar import open_stream


def header(type_: bytes, size: int) -> bytes:
    made = bytearray(512)
    made[:1] = b"x"
    made[100:108] = b"0000644\0"
    made[124:136] = b"%011o\0" % size
    made[156:157] = type_
    made[257:265] = b"ustar  \0"
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


def block(content: bytes) -> bytes:
    return content.ljust(-(-len(content) // 512) * 512, b"\0")


def huge() -> bytes:
    made = bytearray(header(b"0", 0))
    made[124:136] = b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


_SPARSE = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
HOSTILE = {
    "a chain of long names": (header(b"L", 1) + block(b"x")) * 3000,
    "a chain of PAX headers": (header(b"x", 9) + block(b"9 a=bcde\n")) * 3000,
    "a name of 8 GiB": header(b"L", (8 << 30) - 1) + block(b"x"),
    "a PAX header of 8 GiB": header(b"x", (8 << 30) - 1) + block(b"x"),
    "a file of 8 GiB that is not there": header(b"0", (8 << 30) - 1) + block(b"x"),
    "a file of 8 EiB that is not there": huge(),
    "a sparse file": header(b"S", 0),
    "a sparse map without an end": header(b"x", len(_SPARSE)) + block(_SPARSE) + header(b"0", 512) + block(b"9" * 512),
    "a length of 5000 digits": header(b"x", 5120) + block(b"9" * 5100 + b" a=b\n"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_a_damaged_archive(name: str) -> None:
    with pytest.raises(tarfile.ReadError):
        read_all(HOSTILE[name])


def read_all(content: bytes) -> list[tarfile.TarInfo]:
    with open_stream(io.BytesIO(content)) as archive:
        return list(archive)


@pytest.mark.parametrize("format_", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_links_come_through(format_: int) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format_) as archive:
        for number in range(20):
            info = tarfile.TarInfo("d/" * 100 + str(number))
            info.type, info.linkname = tarfile.SYMTYPE, "l/" * 100
            archive.addfile(info)
    found = [(info.name, info.linkname) for info in read_all(buffer.getvalue())]
    assert found == [("d/" * 100 + str(number), "l/" * 100) for number in range(20)]
