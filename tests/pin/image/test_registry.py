from __future__ import annotations

import hashlib
from collections.abc import Mapping
from http.client import BadStatusLine
from typing import Any, Self

import pytest

from windlass.core.errors import AccessError, NotFoundError, UnreachableError
from windlass.pin.image import registry
from windlass.pin.image.naming import parse_reference
from windlass.pin.image.registry import Login

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
    with pytest.raises(AccessError, match=r"r\.io denied access to `r\.io/x:1` for the login `me`") as caught:
        fetch("r.io/x:1")
    assert (caught.value.code, caught.value.hint) == ("remote-forbidden", "docker login r.io")
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


class Opened:
    """What `open_http` returns: an endless body."""

    status = 200
    headers: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def read(self, size: int = -1) -> bytes:
        assert 0 <= size <= 16 << 20, "the whole of an endless answer"
        self.num_bytes += size
        return b"x" * size


def test_an_endless_answer_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.store.remote_files.open_http", lambda *_, **__: Opened())
    with pytest.raises(UnreachableError, match="answered with more than 8 MiB"):
        fetch("127.0.0.1:5000/x:1")


def test_an_answer_that_is_not_http_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_http(*_: object, **__: object) -> Opened:
        raise BadStatusLine("SSH-2.0-OpenSSH_9.2")

    monkeypatch.setattr("windlass.store.remote_files.open_http", open_http)
    with pytest.raises(UnreachableError, match=r"SSH-2\.0-OpenSSH"):
        fetch("127.0.0.1:5000/x:1")


@pytest.mark.parametrize("realm", ["file:///etc/passwd", "http://auth.io/token", "ftp://auth.io/x", "", "//auth.io"])
def test_a_registry_sends_no_login_elsewhere_than_to_https(monkeypatch: pytest.MonkeyPatch, realm: str) -> None:
    challenge = {"www-authenticate": f'Bearer realm="{realm}",service="s"'}
    login = Login(user="ann", password="secret")
    server = serve(monkeypatch, {"https://r.io/v2/x/manifests/1": [(401, challenge, b"")]}, login)
    with pytest.raises(UnreachableError, match="not an https one"):
        fetch("r.io/x:1")
    assert len(server.asked) == 1


def test_a_digest_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(200, {"docker-content-digest": "sha256:../../x"}, b"{}")]
    serve(monkeypatch, {"https://r.io/v2/x/manifests/1": answers})
    with pytest.raises(UnreachableError, match="64 hex digits"):
        fetch("r.io/x:1")
