"""Provider of virtual machines: the client of their server, on the machine that has them and on a cluster's head."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.cluster.config import HEAD, ClusterConfig, NodeGroupConfig
from windlass.cluster.machine import Choice, Machine, Notice
from windlass.cluster.providers.protocol import (
    CreateRequest,
    NoCapacityError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UncertainError,
)
from windlass.cluster.providers.virtual.notices import fetch_notices
from windlass.cluster.providers.virtual.wire import REPLY_S, NotSentError, call
from windlass.core.errors import Problem
from windlass.core.json_text import decode_json

__all__ = ["VirtualProvider", "open_provider"]

_TRY_S = 20.0
_CLOSE_S = 30.0
_CLOSE_REPLY_S = 3.0
_PAUSE_S = 0.1


def open_provider(config: ClusterConfig, *, cluster: str, folder: Path) -> VirtualProvider:
    """Return the provider of a cluster; `virtual.json` in the folder says where its server is. Makes no request."""
    assert config.place.virtual is not None
    return VirtualProvider(folder / "virtual.json", prices=config.place.virtual.prices)


class VirtualProvider:
    """Virtual machines of one cluster.

    Args:
        access: file with the server's address and token.
        prices: price per hour by machine type, in US dollars.
        start: starts the server if none runs; None where it cannot be started.
        checks: what would fail on this machine; None where it is not known.
        is_over: whether there is no server and nothing for one to look after, so that none is started for questions.
    """

    name = "virtual"
    window_s = 4.0
    is_rented = True

    def __init__(
        self,
        access: Path,
        *,
        prices: Mapping[str, float],
        start: Callable[[], None] | None = None,
        checks: Callable[[], Sequence[Problem]] | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._access, self._prices, self._start = access, dict(prices), start
        self._checks, self._is_over = checks, is_over

    def check(self, config: ClusterConfig) -> Sequence[Problem]:
        """Return what this machine lacks; settings are checked with the file. Creates nothing."""
        return [] if self._checks is None else self._checks()

    def choices(self, config: ClusterConfig, group: str) -> Sequence[Choice]:
        """Return the machine types of a group; without any, the first that there is."""
        wanted = config.head if group == HEAD else config.groups.get(group, NodeGroupConfig())
        markets = {"on-demand": [False], "spot": [True], "spot-first": [True, False]}[wanted.market]
        types = wanted.types or tuple(self._prices)[:1]
        return [
            Choice(type=name, is_spot=is_spot, price_per_hour=self._prices.get(name))
            for is_spot in markets
            for name in types
        ]

    def list_machines(self, cluster: str) -> Sequence[Machine]:
        """Return all machines of a cluster that have not ended."""
        return [] if self._is_over() else _machines(self.call("list", cluster=cluster))

    def find(self, token: str) -> Sequence[Machine]:
        """Return the machines of a request, ended ones included."""
        return _machines(self.call("find", token=token))

    def create(self, request: CreateRequest) -> Sequence[Machine]:
        """Make machines: all or none; the same token again returns the same machines."""
        choice = request.choice
        if choice.type not in self._prices:
            message = f"unknown machine type `{choice.type}`"
            raise RefusedError(message, hint=f"known types: {', '.join(self._prices)}; `prices` of the place has them")
        asked = {
            "token": request.token,
            "cluster": request.cluster,
            "group": request.group,
            "count": request.count,
            "type": choice.type,
            "zone": choice.zone,
            "is_spot": choice.is_spot,
            "price_per_hour": self._prices[choice.type],
            "deadline_at": request.deadline_at,
        }
        return _machines(self.call("create", asked=asked, boot=base64.b64encode(request.boot).decode()))

    def terminate(self, ids: Sequence[str]) -> None:
        """End machines; idempotent, and unknown ones count as ended."""
        if not self._is_over():
            self.call("terminate", ids=list(ids))

    def describe(self, ids: Sequence[str]) -> Sequence[Machine]:
        """Return machines by id, ended ones included, while the provider knows them."""
        return _machines(self.call("describe", ids=list(ids)))

    def notices(self) -> Sequence[Notice]:
        """Return the announcements for the machine that this runs on."""
        return fetch_notices()

    def close(self) -> None:
        """End the server if the cluster has no machines; returns when it is gone. Idempotent.

        Raises:
            UncertainError: it does not end.
        """
        end_s = time.monotonic() + _CLOSE_S
        while not self._is_over():
            if time.monotonic() > end_s:
                raise UncertainError("the server of the virtual cluster does not end")
            try:
                if not self.call("close", timeout_s=_CLOSE_REPLY_S):
                    return  # it has machines
            except UncertainError:
                continue  # it ended before its reply
            time.sleep(_PAUSE_S)

    def call(self, verb: str, *, timeout_s: float = REPLY_S, **arguments: Any) -> Any:
        """Send a request to the server, starting the server if it can be started here.

        Raises:
            ProviderError: one of its four kinds.
        """
        end_s = time.monotonic() + _TRY_S
        while True:
            if self._start is not None:
                self._start()
            try:
                return self._send(verb, arguments, timeout_s)
            except (NotSentError, FileNotFoundError, _StaleError) as error:
                if (self._start is None and not isinstance(error, _StaleError)) or time.monotonic() > end_s:
                    hint = "is its machine overloaded?"
                    raise UncertainError(f"the server of the virtual cluster: {error}", hint=hint) from error
            time.sleep(_PAUSE_S)

    def _send(self, verb: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        access = decode_json(self._access.read_bytes())
        try:
            reply = call(access["address"], access["token"], verb, arguments, timeout_s=timeout_s)
        except (OSError, ValueError) as error:
            raise UncertainError(f"the reply of the virtual cluster's server is lost: {error}") from error
        problem = reply.get("error")
        if problem is None:
            return reply["result"]
        if problem["kind"] == "stale":
            raise _StaleError(problem["message"])
        raise _refusal(problem)


class _StaleError(Exception):
    """The request arrived too late, and was not carried out."""


def _machines(rows: Sequence[dict[str, Any]]) -> list[Machine]:
    return [Machine(**{**row, "choice": Choice(**row["choice"])}) for row in rows]


def _refusal(error: dict[str, Any]) -> ProviderError:
    kind, message, hint = error["kind"], error["message"], error["hint"]
    if kind == "throttled":
        return ThrottledError(message, after_s=error["after_s"], hint=hint)
    kinds: dict[str, type[ProviderError]] = {"no-capacity": NoCapacityError, "refused": RefusedError}
    return kinds.get(kind, ProviderError)(message, hint=hint)
