from __future__ import annotations

import pytest

from windlass.pin.image.faults import explain_fault, is_passing

SAID = [
    ("write /var/lib/docker/tmp/x: no space left on device", "disk-full", False),
    ("filesystem layer verification failed for digest sha256:12", "digest-mismatch", False),
    ("no matching manifest for linux/arm64 in the manifest list entries", "wrong-architecture", False),
    ("Error response from daemon: Head x: unauthorized: authentication required", "remote-forbidden", False),
    ("denied: requested access to the resource is denied", "remote-forbidden", False),
    ("Get http://r/v2/: dial tcp 127.0.0.1:1: connect: connection refused", "remote-unreachable", True),
    ("unexpected EOF", "remote-unreachable", True),
    ("received unexpected HTTP status: 500 Internal Server Error", "remote-unreachable", True),
    ("manifest for r/x:1 not found: manifest unknown", "image-not-found", False),
    ("Error: something nobody has seen", "engine-failed", False),
    ("", "engine-failed", False),
]


@pytest.mark.parametrize(("said", "code", "is_tried_again"), SAID)
def test_what_engines_say(said: str, code: str, is_tried_again: bool) -> None:
    error = explain_fault(said, "docker pull ghcr.io/lab/x:1", "ghcr.io/lab/x:1")
    assert (error.code, is_passing(said)) == (code, is_tried_again)
    assert "docker pull ghcr.io/lab/x:1" in error.message
    assert error.hint


def test_a_login_is_asked_for_the_registry_of_the_image() -> None:
    assert explain_fault("unauthorized", "docker pull", "ghcr.io/lab/x:1").hint == "docker login ghcr.io"
    assert explain_fault("unauthorized", "docker pull", "lab/x").hint == "docker login"
