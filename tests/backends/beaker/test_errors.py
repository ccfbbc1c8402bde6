"""What the client raises, in our words: the exit code says what kind of trouble it is."""

from __future__ import annotations

from typing import Any

import beaker.exceptions as beaker
import grpc  # type: ignore[import-untyped]
import pytest

from windlass.core.errors import WindlassError


class _Rpc(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    __abstractmethods__ = frozenset[str]()

    def __init__(self, code: Any) -> None:
        super().__init__()
        self._code = code

    def code(self) -> Any:
        return self._code

    def details(self) -> str:
        return "as\n it said"


def http(status: int) -> Exception:
    from requests import Response

    response = Response()
    response.status_code = status
    return beaker.HTTPError("as\n it said", response=response)


CASES: dict[str, tuple[Exception, int, str]] = {
    "token, gRPC": (_Rpc(grpc.StatusCode.UNAUTHENTICATED), 5, "beaker-token"),
    "token, HTTP": (beaker.BeakerError("[code=401] as it said"), 5, "beaker-token"),
    "token, HTTP without words": (http(401), 5, "beaker-token"),
    "rights": (beaker.BeakerPermissionsError("as it said"), 5, "beaker-forbidden"),
    "no workspace": (beaker.BeakerWorkspaceNotSet("as it said"), 2, "beaker-workspace"),
    "no such thing": (beaker.BeakerImageNotFound("as it said"), 4, "beaker-not-found"),
    "no such page": (http(404), 4, "beaker-not-found"),
    "name": (beaker.BeakerExperimentConflict("as it said"), 8, "already-exists"),
    "refused, gRPC": (beaker.BeakerClientError("as it said"), 8, "beaker-refused"),
    "refused, HTTP": (beaker.BeakerError("[code=400] as it said"), 8, "beaker-refused"),
    "call of a later version": (NotImplementedError("as it said"), 8, "beaker-refused"),
    "server": (beaker.BeakerServerError("as it said"), 6, "beaker-unreachable"),
    "server, HTTP": (http(502), 6, "beaker-unreachable"),
    "busy": (_Rpc(grpc.StatusCode.RESOURCE_EXHAUSTED), 6, "beaker-unreachable"),
    "cut": (beaker.RequestException("as it said"), 6, "beaker-unreachable"),
}


@pytest.mark.parametrize(("error", "exit_code", "code"), CASES.values(), ids=CASES)
def test_a_refusal_is_told_in_our_words(error: Exception, exit_code: int, code: str) -> None:
    from windlass.backends.beaker.errors import REFUSALS, translate

    assert isinstance(error, REFUSALS)
    found = translate(error, "doing something")
    assert isinstance(found, WindlassError)
    assert (found.exit_code, found.code) == (exit_code, code)
    assert "doing something" in found.message
    assert code == "beaker-workspace" or "as it said" in found.message
    assert "[code=" not in found.message
