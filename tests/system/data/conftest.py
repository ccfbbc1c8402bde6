"""One S3 server a session, a fresh bucket a test, and a proxy that misbehaves."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.lab.components import COMPONENTS, is_present
from tests.lab.s3 import FaultyProxy, S3Lab


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Lab]:
    if not is_present("s3"):
        pytest.skip(f"needs s3: {COMPONENTS['s3'].remedy}")
    lab = S3Lab()
    try:
        lab.up()
        yield lab
    finally:
        lab.down()


@pytest.fixture
def bucket(s3_server: S3Lab, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a fresh bucket that S3 clients of this process and its children reach."""
    name = f"bucket-{os.urandom(4).hex()}"
    s3_server.make_bucket(name)
    for key, value in s3_server.env.items():
        monkeypatch.setenv(key, value)
    return f"s3://{name}"


@pytest.fixture
def proxy(s3_server: S3Lab, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """The same server through a proxy, for what is opened from now on."""
    with FaultyProxy(s3_server.port) as proxy:
        for key, value in proxy.env.items():
            monkeypatch.setenv(key, value)
        yield proxy
