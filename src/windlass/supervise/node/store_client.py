"""Client of the store in the head's agent. Standard library alone: its text is part of the script that machines boot with.

    request   X-Windlass-Time, X-Windlass-Nonce, X-Windlass-Mac: HMAC of method, path, nonce, time and the body's digest
    reply     X-Windlass-Mac: HMAC of the request's nonce, the status and the body's digest

The key is derived from the cluster's token, which is never sent. A request is refused when its time is too far from the
head's or its nonce was used; the reply then states the head's time, and the client continues with that.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import secrets
import time

MAC, NONCE, TIME = "X-Windlass-Mac", "X-Windlass-Nonce", "X-Windlass-Time"
MAX_BYTES = 512 << 20
WRONG_TIME = 425


class StoreError(Exception):
    """No reply from the head's store, or one that is not authentic, or a refusal."""


def key_of(token: str) -> bytes:
    """Return the key for requests and replies."""
    return hmac.new(token.encode(), b"windlass node store", hashlib.sha256).digest()


def mac_of(key: bytes, *words: str) -> str:
    """Return the authentication code of words without line breaks."""
    return hmac.new(key, "\n".join(words).encode(), hashlib.sha256).hexdigest()


class StoreClient:
    """Connection settings of a node; each call is one connection."""

    def __init__(self, address: str, token: str, timeout_s: float = 10.0) -> None:
        self._host, _, port = address.rpartition(":")
        self._port, self._key, self._timeout_s = int(port), key_of(token), timeout_s
        self._offset_s = 0.0

    def call(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the body of an authentic reply; raises StoreError."""
        for _ in range(2):
            status, reply = self._once(method, path, body)
            if status == WRONG_TIME:
                self._offset_s = float(reply) - time.time()
                continue
            break
        if status != 200:
            raise StoreError(f"{method} {path}: {status} {reply[:200].decode(errors='replace')}")
        return reply

    def _once(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        nonce, at = secrets.token_hex(16), f"{time.time() + self._offset_s:.3f}"
        code = mac_of(self._key, "request", method, path, nonce, at, hashlib.sha256(body).hexdigest())
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request(method, path, body or None, {MAC: code, NONCE: nonce, TIME: at})
            response = connection.getresponse()
            content = response.read(MAX_BYTES)
            status, given = response.status, response.getheader(MAC, "")
        except (OSError, http.client.HTTPException) as error:
            raise StoreError(f"{self._host}:{self._port}: {str(error) or type(error).__name__}") from error
        finally:
            connection.close()
        expected = mac_of(self._key, "reply", nonce, str(status), hashlib.sha256(content).hexdigest())
        if not hmac.compare_digest(given.encode(), expected.encode()):
            raise StoreError(f"{self._host}:{self._port}: the reply is not authentic")
        return status, content
