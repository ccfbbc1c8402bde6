"""Threads of a node's agent: posts of its status to the head's store, and the notices of its machine."""

from __future__ import annotations

import sys
import threading
import time
from typing import Callable

from windlass.core.json_text import decode_json
from windlass.supervise.node.notices import MetadataError, fetch_notices
from windlass.supervise.node.spec import NodeSpec, NodeStatus
from windlass.supervise.node.store_client import StoreClient, StoreError

__all__ = ["HeadLink", "NoticeWatch", "silence_limit_s"]

_POST_S = 1.0
_NOTICE_S = 1.0
_LEAST_SILENCE_S = 60.0
_SILENCE_S = 300.0


def silence_limit_s(spec: NodeSpec) -> float:
    """Return how long the head of a node may be silent before the node ends: its idle time, within one to five minutes.

    Without its head a node has no Ray, so a long idle time would only be paid for.
    """
    return max(_LEAST_SILENCE_S, _SILENCE_S if spec.idle_s is None else min(_SILENCE_S, spec.idle_s))


class HeadLink:
    """Posts the node's status each second; a head that does not reply is silent.

    Args:
        status: returns the status now.
    """

    def __init__(
        self, spec: NodeSpec, status: Callable[[], NodeStatus], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = StoreClient(spec.store, spec.auth_token, timeout_s=5.0)
        self._status, self._monotonic = status, monotonic
        self._heard_s, self._lock = monotonic(), threading.Lock()
        self._is_stop_requested = False

    def start(self) -> None:
        """Post from a thread."""
        threading.Thread(target=self._run, name="head-link", daemon=True).start()

    @property
    def silent_s(self) -> float:
        """Return the seconds since the head last replied."""
        return self._monotonic() - self._heard_s

    @property
    def is_stop_requested(self) -> bool:
        """Return whether the head ends and wants its nodes to end."""
        return self._is_stop_requested

    def post(self) -> bool:
        """Post the status once; return whether the head replied."""
        try:
            with self._lock:
                reply = decode_json(self._client.call("POST", "/status", self._status().to_json()))
        except (StoreError, ValueError) as error:
            sys.stderr.write(f"status not posted: {error}\n")
            return False
        self._heard_s = self._monotonic()
        self._is_stop_requested = self._is_stop_requested or bool(reply.get("stop"))
        return True

    def _run(self) -> None:
        while True:
            self.post()
            time.sleep(_POST_S)


class NoticeWatch:
    """Asks the metadata service each second whether the machine is taken back."""

    def __init__(self, service: str) -> None:
        self._service = service
        self.at: float | None = None

    def start(self) -> None:
        """Ask from a thread."""
        if self._service:
            threading.Thread(target=self._run, name="notices", daemon=True).start()

    def _run(self) -> None:
        last = ""
        while True:
            try:
                ends = [each.at for each in fetch_notices(self._service) if each.kind != "rebalance"]
                self.at, last = (min(ends) if ends else self.at), ""
            except MetadataError as error:
                if str(error) != last:  # once, not each second
                    last = str(error)
                    sys.stderr.write(f"no notices: {last}\n")
            time.sleep(_NOTICE_S)
