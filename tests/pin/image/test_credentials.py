from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from windlass.pin.image.registry import Login, find_login


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with docker's configuration and a credential helper, `docker-credential-fake`, which knows one registry."""
    helper = tmp_path / "docker-credential-fake"
    helper.write_text(
        '#!/bin/sh\nread server\n[ "$server" = ghcr.io ] || { echo "credentials not found"; exit 1; }\n'
        'echo \'{"ServerURL": "ghcr.io", "Username": "me", "Secret": "pass"}\'\n'
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def login(folder: Path, registry: str, **config: object) -> Login | None:
    (folder / "config.json").write_text(json.dumps(config))
    return find_login(registry, {"DOCKER_CONFIG": str(folder), "HOME": str(folder)})


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


def test_logins_in_the_file(world: Path) -> None:
    auths = {"ghcr.io": auth("me:pa:ss"), "https://index.docker.io/v1/": auth("hub:x"), "bad": {"auth": "%"}}
    assert login(world, "ghcr.io", auths=auths) == Login(user="me", password="pa:ss")
    assert login(world, "docker.io", auths=auths) == Login(user="hub", password="x")
    assert login(world, "bad", auths=auths) is None
    assert login(world, "elsewhere", auths=auths) is None


def test_helpers_for_all_and_for_one(world: Path) -> None:
    assert login(world, "ghcr.io", credsStore="fake") == Login(user="me", password="pass")
    assert login(world, "ghcr.io", credHelpers={"ghcr.io": "fake"}) == Login(user="me", password="pass")
    assert login(world, "quay.io", credsStore="fake") is None
    assert login(world, "ghcr.io", credsStore="not-installed", auths={"ghcr.io": auth("a:b")}) == Login(
        user="a", password="b"
    )


def test_nothing_is_no_login(world: Path) -> None:
    assert find_login("ghcr.io", {"DOCKER_CONFIG": str(world / "none"), "HOME": str(world)}) is None
    (world / "config.json").write_text("{")
    assert find_login("ghcr.io", {"DOCKER_CONFIG": str(world), "HOME": str(world)}) is None


def test_the_password_is_not_shown() -> None:
    assert "hidden" not in repr(Login(user="me", password="hidden"))
