"""Encryption of bytes with age, using keys in text form.

Source: https://age-encryption.org/v1, implemented by pyrage.
"""

from __future__ import annotations

__all__ = ["AgeError", "decrypt", "encrypt", "new_identity"]


class AgeError(Exception):
    """Error for a key or file that age rejects; the message contains neither."""


def new_identity() -> str:
    """Return a new secret key, in the format that age-keygen writes."""
    import pyrage  # type: ignore[import-untyped]  # lazy: a compiled module that most commands do not need

    return str(pyrage.x25519.Identity.generate())


def encrypt(content: bytes, identity: str) -> bytes:
    """Encrypt `content` for the owner of the key `identity`."""
    import pyrage  # lazy: see new_identity

    try:
        return bytes(pyrage.encrypt(content, [pyrage.x25519.Identity.from_str(identity).to_public()]))
    except pyrage.IdentityError as error:
        raise AgeError("invalid age key") from error


def decrypt(content: bytes, identity: str) -> bytes:
    """Decrypt `content` with the key `identity`. Raises AgeError for a wrong key or changed content."""
    import pyrage  # lazy: see new_identity

    try:
        return bytes(pyrage.decrypt(content, [pyrage.x25519.Identity.from_str(identity)]))
    except pyrage.IdentityError as error:
        raise AgeError("invalid age key") from error
    except pyrage.DecryptError as error:
        raise AgeError(str(error)) from error
