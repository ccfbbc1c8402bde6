from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from windlass.store.data_version import Version, VersionEntry

SHA = "ab" * 32


def version(*paths: str) -> Version:
    entries = [VersionEntry(path=path, mode="-", size_bytes=3, sha256=SHA) for path in paths]
    return Version(kind="folder", entries=tuple(entries), name="d")


def test_the_digest_does_not_depend_on_the_order_or_on_names() -> None:
    assert version("a", "b").digest == version("b", "a").digest
    assert version("a").digest != version("b").digest


def test_any_name_survives_the_disk() -> None:
    odd = version("new\nline", "\udcff", "sp ace", "\u00fc")
    assert Version.from_bytes(odd.to_bytes(), odd.digest) == odd


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["../x"], "is outside the dataset"),
        (["/etc/passwd"], "is outside the dataset"),
        (["a/../../x"], "is outside the dataset"),
        (["a//b"], "is outside the dataset"),
        ([""], "kind does not match"),
        (["."], "is outside the dataset"),
        (["a", "a"], "duplicate path"),
        (["a", "a/b"], "below a file"),
    ],
)
def test_a_manifest_from_elsewhere_may_not_lead_out_of_its_folder(paths: list[str], message: str) -> None:
    bad = version(*paths)
    with pytest.raises(ValueError, match=message):
        Version.from_bytes(bad.to_bytes(), bad.digest)


@pytest.mark.parametrize("link", ["/etc/passwd", "../../x", ".."])
def test_nor_may_its_links(link: str) -> None:
    import hashlib

    entry = VersionEntry(
        path="l", mode="l", size_bytes=len(link), sha256=hashlib.sha256(link.encode()).hexdigest(), link=link
    )
    bad = Version(kind="folder", entries=(entry,))
    with pytest.raises(ValueError, match="points outside the dataset"):
        Version.from_bytes(bad.to_bytes(), bad.digest)


def spoilt(change: Callable[[dict[str, Any]], object]) -> bytes:
    content = version("a", "b").to_data()
    change(content)
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        spoilt(lambda data: data.update(schema=2)),
        spoilt(lambda data: data["files"].pop()),
        spoilt(lambda data: data["files"][0].__setitem__(1, 4)),
        spoilt(lambda data: data["files"][0].__setitem__(2, "../../etc")),
        spoilt(lambda data: data.update(kind="file")),
    ],
)
def test_a_damaged_manifest_is_no_version(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Version.from_bytes(content, version("a", "b").digest)
