"""Messages between a virtual cloud and its clients: JSON in HTTP, signed with the cluster's token in both directions.

    POST /        X-Windlass-Mac: HMAC-SHA256(token, "request" body)      {"at", "nonce", "verb", "arguments"}
    200           X-Windlass-Mac: HMAC-SHA256(token, "reply" nonce body)  {"result"} or {"error"}

`at` is on the clock of this boot, which all namespaces share: an old message is refused, and a nonce is taken once, so
that nothing that was recorded can be sent again.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import secrets
import time
from typing import Any

from windlass.core.dataclass import dataclass
from windlass.core.json_text import decode_json

__all__ = ["FRESH_S", "MAC", "MAX_BYTES", "REPLY_S", "NotSentError", "call", "clock_s", "sign"]

MAC = "X-Windlass-Mac"
MAX_BYTES = 4 << 20
FRESH_S = 2.5
"""Age above which a request is refused."""

REPLY_S = 30.0
"""Time that a client waits for a reply."""

_CONNECT_S = 5.0


class NotSentError(Exception):
    """The request did not reach the server, so nothing was done."""


@dataclass(frozen=True, slots=True)
class _Address:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> _Address:
        host, _, port = text.rpartition(":")
        return cls(host, int(port))


def clock_s() -> float:
    """Return the seconds since this machine's boot, the same in all namespaces."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def sign(token: str, kind: str, body: bytes) -> str:
    """Return the signature of a body; `kind` separates requests and the replies to each nonce."""
    return hmac.new(token.encode(), kind.encode() + b"\n" + body, hashlib.sha256).hexdigest()


def call(address: str, token: str, verb: str, arguments: dict[str, Any], *, timeout_s: float = REPLY_S) -> Any:
    """Send a request and return the body of its reply.

    Raises:
        NotSentError: no connection; nothing was done.
        OSError, ValueError: the reply is lost or not the server's; what was done is unknown.
    """
    nonce = secrets.token_hex(16)
    body = json.dumps({"at": clock_s(), "nonce": nonce, "verb": verb, "arguments": arguments}).encode()
    there = _Address.parse(address)
    connection = http.client.HTTPConnection(there.host, there.port, timeout=_CONNECT_S)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise NotSentError(f"cannot connect to {address}: {error.strerror or error}") from error
        assert connection.sock is not None
        connection.sock.settimeout(timeout_s)
        headers = {MAC: sign(token, "request", body)}
        try:
            connection.request("POST", "/", body=body, headers=headers)
            response = connection.getresponse()
            reply = response.read(MAX_BYTES + 1)
        except http.client.HTTPException as error:
            raise OSError(f"no reply from {address}: {error}") from error
        mac = response.getheader(MAC, "")
        if len(reply) > MAX_BYTES or not hmac.compare_digest(mac, sign(token, f"reply {nonce}", reply)):
            raise ValueError(f"the reply from {address} is not signed with the cluster's token")
        return decode_json(reply)
    finally:
        connection.close()
