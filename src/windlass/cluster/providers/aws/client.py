"""Clients of AWS: boto3 with stated timeouts, without its own retries, and with errors of the protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from windlass.cluster.config import AwsPlace
from windlass.cluster.providers.aws.errors import code_of, translate
from windlass.cluster.providers.protocol import RefusedError, UncertainError
from windlass.core.extras import require

__all__ = ["AwsClient"]

_CONNECT_S = 5.0
_READ_S = 30.0


class AwsClient:
    """API of AWS in one region; safe in several threads. Makes no request before the first call."""

    def __init__(self, place: AwsPlace) -> None:
        self.place = place
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}

    def call(self, action: str, *, what: str, service: str = "ec2", absent: Sequence[str] = (), **fields: Any) -> Any:
        """Return the reply to a request; None if its error is one of `absent`. Blocks for 35 seconds at most.

        Args:
            action: method of boto3's client.
            what: what is asked for, for messages: `cannot list machines`.
            absent: codes of errors that mean that there is no such thing.

        Raises:
            ProviderError: one of its four kinds.
        """
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError  # lazy: a second

        client = self._client(service, what)
        try:
            return getattr(client, action)(**fields)
        except (BotoCoreError, ClientError, HTTPClientError) as error:
            if code_of(error) in absent:
                return None
            raise translate(error, what) from error
        except ValueError as error:  # what botocore raises for an endpoint that is no URL
            raise RefusedError(f"{what}: {error}", hint="correct `place.aws.endpoint`") from error

    def pages(self, action: str, key: str, *, what: str, **fields: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the items of all pages of a list.

        Raises:
            ProviderError: one of its four kinds; items that came before are not a complete list.
        """
        token: str | None = ""
        while token is not None:
            page = self.call(action, what=what, **fields, **({"NextToken": token} if token else {}))
            if not isinstance(page, dict) or not isinstance(page.get(key), list):
                raise UncertainError(f"{what}: the reply has no `{key}`", hint="check `place.aws.endpoint`")
            yield from page[key]
            token = page.get("NextToken") or None

    def regions(self) -> list[str]:
        """Return the regions with EC2 that the installed botocore knows."""
        return list(self._session().get_available_regions("ec2"))

    def fields(self, operation: str) -> frozenset[str]:
        """Return the fields of an operation of EC2, by botocore's model; makes no request."""
        model = self._client("ec2", "cannot read the API's model").meta.service_model.operation_model(operation)
        return frozenset(model.input_shape.members)

    def _client(self, service: str, what: str) -> Any:
        with self._lock:  # boto3's sessions are not safe in threads, its clients are
            if service not in self._clients:
                self._clients[service] = self._make(service, what)
            return self._clients[service]

    def _make(self, service: str, what: str) -> Any:
        from botocore.config import Config  # lazy: a second
        from botocore.exceptions import BotoCoreError

        # One attempt: a repeated request would be hidden from the journal, and create repeats with its own token.
        config = Config(connect_timeout=_CONNECT_S, read_timeout=_READ_S, retries={"total_max_attempts": 1})
        try:
            return self._session().client(
                service, region_name=self.place.region, endpoint_url=self.place.endpoint or None, config=config
            )
        except (BotoCoreError, ValueError) as error:
            if isinstance(error, BotoCoreError):
                raise translate(error, what) from error
            raise RefusedError(f"{what}: {error}", hint="correct `place.aws.endpoint` or `region`") from error

    def _session(self) -> Any:
        boto3 = require("boto3", "place `aws` needs boto3", hint="pip install 'windlass[aws]'")
        return boto3.session.Session()
