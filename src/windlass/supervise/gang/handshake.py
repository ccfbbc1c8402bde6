"""Handshake with a gang's leader: both ends prove that they know the job's token without sending it.

    replica -> leader    windlass-gang 00000003 <nonce>        rank, 32 hex digits
    leader  -> replica   <nonce> <proof>                       32 and 64 hex digits
    replica -> leader    <proof>

A proof is HMAC-SHA256 with the token as key over the role, the rank and both nonces. Any local user may connect to the
leader's port, or open it after the leader died, so all lines have a fixed length and nothing is parsed before the proof.
"""

from __future__ import annotations

import os

__all__ = ["ClientHandshake", "ServerHandshake"]

_WORD = b"windlass-gang"
_NONCE_BYTES = 16
_NONCE = 2 * _NONCE_BYTES
_PROOF = 64
_HELLO = len(_WORD) + 1 + 8 + 1 + _NONCE + 1
_CHALLENGE = _NONCE + 1 + _PROOF + 1
_ANSWER = _PROOF + 1


class _Lines:
    """Parser of fixed-length lines from bytes that arrive in arbitrary pieces."""

    def __init__(self) -> None:
        self.rest = b""

    def _take(self, length: int) -> bytes:
        """Return a line without its newline, or "" until it is complete; raises ValueError for a wrong length."""
        newline = self.rest.find(b"\n", 0, length)
        if newline < 0 and len(self.rest) < length:
            return b""
        if newline != length - 1:
            raise ValueError("invalid handshake line")
        line, self.rest = self.rest[:newline], self.rest[length:]
        return line


class ServerHandshake(_Lines):
    """Leader's side of the handshake on one connection.

    Attributes:
        rank: rank of the replica; -1 until it has proved that it knows the token.
        rest: bytes after the handshake.
    """

    def __init__(self, token: str, num_replicas: int) -> None:
        super().__init__()
        self._token, self._num_replicas = token, num_replicas
        self._claimed, self._nonces = -1, b""
        self.rank = -1

    def receive(self, piece: bytes) -> bytes:
        """Process bytes and return the reply; raises ValueError if the connection must be closed."""
        self.rest += piece
        answer = b""
        if self._claimed < 0:
            line = self._take(_HELLO)
            answer = self._challenge(line) if line else b""
        if self._claimed >= 0 and self.rank < 0:
            proof = self._take(_ANSWER)
            if proof and not _are_equal(proof, _proof(self._token, b"replica", self._claimed, self._nonces)):
                raise ValueError("invalid proof: the peer does not know the token")
            self.rank = self._claimed if proof else -1
        return answer

    def _challenge(self, line: bytes) -> bytes:
        word, rank, theirs = line[: len(_WORD)], line[len(_WORD) + 1 : -_NONCE - 1], line[-_NONCE:]
        if word != _WORD or not rank.isdigit() or int(rank) >= self._num_replicas:
            raise ValueError("not a replica of this job")
        ours = _nonce()
        self._claimed, self._nonces = int(rank), theirs + ours
        return ours + b" " + _proof(self._token, b"leader", self._claimed, self._nonces) + b"\n"


class ClientHandshake(_Lines):
    """Replica's side of the handshake on one connection.

    Attributes:
        is_done: whether the leader has proved that it knows the token.
        rest: bytes after the handshake.
    """

    def __init__(self, token: str, rank: int) -> None:
        super().__init__()
        self._token, self._rank, self._ours = token, rank, _nonce()
        self.is_done = False

    def hello(self) -> bytes:
        """Return the first line to send."""
        return b"%s %08d %s\n" % (_WORD, self._rank, self._ours)

    def receive(self, piece: bytes) -> bytes:
        """Process bytes and return the reply; raises ValueError if the connection must be closed."""
        self.rest += piece
        line = b"" if self.is_done else self._take(_CHALLENGE)
        if not line:
            return b""
        nonces = self._ours + line[:_NONCE]
        if not _are_equal(line[_NONCE + 1 :], _proof(self._token, b"leader", self._rank, nonces)):
            raise ValueError("invalid proof: the peer does not know the token")
        self.is_done = True
        return _proof(self._token, b"replica", self._rank, nonces) + b"\n"


def _nonce() -> bytes:
    return os.urandom(_NONCE_BYTES).hex().encode()


def _proof(token: str, role: bytes, rank: int, nonces: bytes) -> bytes:
    import hmac  # lazy: imports OpenSSL (4 ms); a task of one replica has no connections

    return hmac.new(token.encode(), b"%s %d %s" % (role, rank, nonces), "sha256").hexdigest().encode()


def _are_equal(one: bytes, other: bytes) -> bool:
    import hmac  # lazy: as above

    return hmac.compare_digest(one, other)
