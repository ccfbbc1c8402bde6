from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest

from windlass.core.errors import AccessError, NotFoundError, UnreachableError
from windlass.pin.image import registry
from windlass.pin.image.credentials import Login
from windlass.pin.image.naming import parse_reference

DIGEST = "sha256:" + "b" * 64
Answer = tuple[int, dict[str, str], bytes]


class Server:
    """Answers by address; remembers what it was asked."""

    def __init__(self, answers: Mapping[str, list[Answer]]) -> None:
        self.answers = {address: list(answers) for address, answers in answers.items()}
        self.asked: list[tuple[str, str]] = []
        self.forms: list[bytes] = []

    def get(self, address: str, headers: Mapping[str, str], reference: Any, timeout_s: float, *form: bytes) -> Answer:
        self.asked.append((address, headers.get("Authorization", "")))
        self.forms += form
        return self.answers[address].pop(0)


def serve(monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, list[Answer]], login: Login | None = None) -> Server:
    server = Server(answers)
    monkeypatch.setattr(registry, "_get", server.get)
    monkeypatch.setattr(registry, "find_login", lambda _: login)
    return server


def fetch(name: str) -> str:
    return registry.fetch_digest(parse_reference(name))


def test_a_tag_is_what_the_registry_says(monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(
        monkeypatch, {"http://127.0.0.1:5000/v2/x/manifests/1": [(200, {"docker-content-digest": DIGEST}, b"")]}
    )
    assert fetch("127.0.0.1:5000/x:1") == DIGEST
    assert server.asked == [("http://127.0.0.1:5000/v2/x/manifests/1", "")]


def test_a_registry_that_does_not_say_it_is_not_believed_but_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {"https://r.io/v2/x/manifests/1": [(200, {}, b"{}")]})
    assert fetch("r.io/x:1") == f"sha256:{hashlib.sha256(b'{}').hexdigest()}"


def test_a_token_is_fetched_where_the_registry_wants_one(monkeypatch: pytest.MonkeyPatch) -> None:
    challenge = {"www-authenticate": 'Bearer realm="https://auth.io/token",service="registry.docker.io",scope="s"'}
    hub = "https://registry-1.docker.io/v2/library/python/manifests/3"
    token = "https://auth.io/token?service=registry.docker.io&scope=s"
    server = serve(
        monkeypatch,
        {
            hub: [(401, challenge, b""), (200, {"docker-content-digest": DIGEST}, b"")],
            token: [(200, {}, b'{"token": "t"}')],
        },
        Login(user="me", password="p"),
    )
    assert fetch("python:3") == DIGEST
    assert server.asked == [(hub, ""), (token, "Basic bWU6cA=="), (hub, "Bearer t")]


def test_an_identity_token_is_exchanged_for_one_of_the_registrys(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `docker login` keeps where the registry's company logs people in itself."""
    challenge = {
        "www-authenticate": 'Bearer realm="https://r.io/oauth2/token",service="r.io",scope="repository:x:pull"'
    }
    address, realm = "https://r.io/v2/x/manifests/1", "https://r.io/oauth2/token"
    server = serve(
        monkeypatch,
        {
            address: [(401, challenge, b""), (200, {"docker-content-digest": DIGEST}, b"")],
            realm: [(200, {}, b'{"access_token": "a"}')],
        },
        Login(user="", password="long lived"),
    )
    assert fetch("r.io/x:1") == DIGEST
    assert server.asked == [(address, ""), (realm, ""), (address, "Bearer a")]
    assert server.forms == [
        b"grant_type=refresh_token&client_id=windlass&refresh_token=long+lived&service=r.io&scope=repository%3Ax%3Apull"
    ]


def test_a_login_that_is_refused_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    basic = {"www-authenticate": 'Basic realm="r"'}
    address = "https://r.io/v2/x/manifests/1"
    serve(monkeypatch, {address: [(401, basic, b""), (401, {}, b"")]}, Login(user="me", password="p"))
    with pytest.raises(AccessError, match=r"r\.io refuses `r\.io/x:1` to the login `me`") as caught:
        fetch("r.io/x:1")
    assert (caught.value.code, caught.value.hint) == ("registry-login", "docker login r.io")
    serve(monkeypatch, {address: [(401, basic, b"")]})
    with pytest.raises(AccessError, match="requests without a login"):
        fetch("r.io/x:1")


def test_what_is_not_there_and_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "https://r.io/v2/x/manifests/1"
    serve(monkeypatch, {address: [(404, {}, b"")]})
    with pytest.raises(NotFoundError, match=r"has no image `r\.io/x:1`"):
        fetch("r.io/x:1")
    serve(monkeypatch, {address: [(503, {}, b"")]})
    with pytest.raises(UnreachableError, match="it answered 503"):
        fetch("r.io/x:1")
