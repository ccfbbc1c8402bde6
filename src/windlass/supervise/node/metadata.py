"""Metadata service of a machine. Standard library alone: its text is part of the script that machines boot with.

Source: Amazon EC2 User Guide, "Use the Instance Metadata Service to access instance metadata", version 2.
"""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request

AWS_ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
ID_VARIABLE = "WINDLASS_VIRTUAL_ID"
ADDRESS_VARIABLE = "WINDLASS_VIRTUAL_METADATA"

_AWS_ENDPOINT = "http://169.254.169.254"
_TIMEOUT_S = 2.0
_MAX_BYTES = 64 << 10


class MetadataError(Exception):
    """The metadata service did not reply, or its reply is unreadable."""


def fetch_instance(service: str) -> str:
    """Return this machine's id at its provider, `aws` or `virtual`; raises MetadataError."""
    if service == "virtual":
        return os.environ.get(ID_VARIABLE, "")
    content = fetch_aws("instance-id", aws_token())
    if not content or not content.strip():
        raise MetadataError("the metadata service does not state this machine's id")
    return content.decode("ascii", "replace").strip()


def aws_token() -> str:
    """Return a token for requests to the service of EC2."""
    token = fetch(_aws_url("api/token"), {"X-aws-ec2-metadata-token-ttl-seconds": "300"}, "PUT")
    if token is None:
        raise MetadataError("the metadata service has no version 2")
    return token.decode("ascii", "replace").strip()


def fetch_aws(name: str, token: str) -> bytes | None:
    """Return an entry of the service of EC2; None if it has none of this name."""
    return fetch(_aws_url("meta-data/" + name), {"X-aws-ec2-metadata-token": token})


def fetch(url: str, headers: dict[str, str], method: str = "GET") -> bytes | None:
    """Return a reply; None if the service has no such entry, which is how it states that there is no notice."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy would be another machine's service
    try:
        request = urllib.request.Request(url, headers=headers, method=method)  # noqa: S310 - the machine's own service
        with opener.open(request, timeout=_TIMEOUT_S) as reply:
            return bytes(reply.read(_MAX_BYTES))
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise MetadataError(f"{url}: {error}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise MetadataError(f"{url}: {error}") from error


def _aws_url(path: str) -> str:
    endpoint = os.environ.get(AWS_ENDPOINT_VARIABLE) or _AWS_ENDPOINT
    return f"{endpoint.rstrip('/')}/latest/{path}"
