"""Temporary certificate authority, made once per process and valid on the loopback for a week."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError

__all__ = ["Certificates", "trusted_here", "write_certificates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Certificate and key of a TLS server on the loopback, and the root certificates for its clients."""

    roots_file: Path
    key: bytes
    chain: bytes


def write_certificates(folder: Path) -> Certificates:
    """Issue certificates for localhost from this process's authority; only the roots are written to `folder`.

    One authority for a process: grpc reads its roots once, and a test process may have many fakes.

    Raises:
        PreconditionError: the `cryptography` package is missing.
    """
    authority, key, chain = _made()
    roots = folder / "roots.pem"
    roots.write_bytes(authority)
    return Certificates(roots_file=roots, key=key, chain=chain)


@contextlib.contextmanager
def trusted_here() -> Iterator[None]:
    """Make clients in this process trust the authority, even if grpc has already loaded other roots.

    grpc reads the file of roots on first use, which may already have happened; a client without trusted roots
    then retries forever.
    """
    import grpc  # type: ignore[import-untyped]  # lazy: 0.2 s

    genuine = grpc.ssl_channel_credentials

    def with_roots(root_certificates: bytes | None = None, *rest: Any, **named: Any) -> Any:
        return genuine(root_certificates or _made()[0], *rest, **named)

    grpc.ssl_channel_credentials = with_roots
    try:
        yield
    finally:
        grpc.ssl_channel_credentials = genuine


@functools.cache
def _made() -> tuple[bytes, bytes, bytes]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise PreconditionError(
            "the fake Beaker needs `cryptography` for its certificate, but it is not installed",
            hint="pip install cryptography",
            code="extra-missing",
        ) from error

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    now = dt.datetime.now(dt.UTC)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())

    def certificate(
        subject: str, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("fake beaker authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=7))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        )

    constraints = x509.BasicConstraints(ca=True, path_length=0)
    loopback = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    authority = certificate("fake beaker authority", authority_key, constraints).sign(authority_key, hashes.SHA256())
    server = certificate("localhost", server_key, loopback).sign(authority_key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    key = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return authority.public_bytes(pem), key, server.public_bytes(pem)
