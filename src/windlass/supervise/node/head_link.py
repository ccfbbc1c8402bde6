"""Threads of a node's agent: posts of its status to the head's store, and the notices of its machine."""

from __future__ import annotations

import threading
import time
from typing import Callable

from windlass.core.json_text import decode_json
from windlass.supervise.node.agent_log import LogOnce
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
        self._log = LogOnce()

    def start(self) -> None:
        """Post from a thread."""
        threading.Thread(target=self._run, name="head-link", daemon=True).start()

    @property
    def silent_s(self) -> float:
        """Return the seconds since the head last replied."""
        return self._monotonic() - self._heard_s

    @property
    def problem(self) -> str:
        """Return why the last post failed; empty if the head replied."""
        return self._log.problem

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
            self._log.write(f"status not posted: {error}")
            return False
        self._log.write("")
        self._heard_s = self._monotonic()
        self._is_stop_requested = self._is_stop_requested or bool(reply.get("stop"))
        return True

    def _run(self) -> None:
        while True:
            try:
                self.post()
            except Exception as error:  # noqa: BLE001 - without this thread the node would end, and nobody would know why
                self._log.write(f"status not posted: {type(error).__name__}: {error}")
            time.sleep(_POST_S)


class NoticeWatch:
    """Asks the metadata service each second whether the machine is taken back."""

    def __init__(self, service: str) -> None:
        self._service, self._log = service, LogOnce()
        self.at: float | None = None

    def start(self) -> None:
        """Ask from a thread."""
        if self._service:
            threading.Thread(target=self._run, name="notices", daemon=True).start()

    def look(self) -> None:
        """Ask once."""
        try:
            ends = [each.at for each in fetch_notices(self._service) if each.kind != "rebalance"]
        except MetadataError as error:
            self._log.write(f"no notices: {error}")
        except Exception as error:  # noqa: BLE001 - without this thread no notice would be heard
            self._log.write(f"no notices: {type(error).__name__}: {error}")
        else:
            self.at = min(ends) if ends else self.at
            self._log.write("")

    def _run(self) -> None:
        while True:
            self.look()
            time.sleep(_NOTICE_S)
