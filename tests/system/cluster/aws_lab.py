"""Clusters of the lab's EC2 in tests: opened by their file, with what the client would do."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.lab.cloud import REGION, CloudLab
from windlass.cluster.config import HEAD, ClusterConfig
from windlass.cluster.controller import ClusterController
from windlass.cluster.decide import TargetGroup
from windlass.cluster.machine import Choice, Machine
from windlass.cluster.places import MachinePlace, open_place
from windlass.cluster.providers.aws.provider import AwsProvider
from windlass.cluster.providers.protocol import CreateRequest
from windlass.cluster.state import fold
from windlass.config.loading import load_config
from windlass.core.clock import SystemClock
from windlass.record.journal import JournalWriter, read_journal

__all__ = ["AwsCluster", "until"]

FILE = """
name: lab
place: {{aws: {{{where}, endpoint: "{url}", user: root{more}}}}}
head: {{types: [m5.large]}}
groups: {{workers: {{types: {types}, count: 2{group}}}}}
"""


class AwsCluster:
    """One cluster, as its client has it."""

    def __init__(
        self,
        cloud: CloudLab,
        folder: Path,
        *,
        where: str = f"region: {REGION}",
        more: str = "",
        types: str = "[m5.large, m5.xlarge]",
        group: str = "",
    ) -> None:
        text = FILE.format(where=where, url=cloud.front.url, more=more, types=types, group=group)
        self.cloud, self.folder = cloud, folder
        self.config = load_config(ClusterConfig, text, source="cluster.yaml").value
        self.cluster = f"lab-{secrets.token_hex(4)}"
        self.place: MachinePlace = open_place(
            self.config, cluster=self.cluster, folder=folder, archive=folder / "windlass.pyz"
        )

    @property
    def provider(self) -> AwsProvider:
        assert isinstance(self.place.provider, AwsProvider)
        return self.place.provider

    def request(self, token: str, **fields: Any) -> CreateRequest:
        choice: Choice = self.provider.choices(self.config, fields.get("group", "workers"))[0]
        return CreateRequest(
            **{"token": token, "cluster": self.cluster, "group": "workers", "count": 1, "choice": choice, **fields}
        )

    def create(self, token: str, **fields: Any) -> list[Machine]:
        return list(self.provider.create(self.request(token, **fields)))

    def booted(self, token: str, **fields: Any) -> Machine:
        """Make a machine, and wait until ssh reaches it."""
        (made,) = self.create(token, **fields)
        self.cloud.wait_booted(made.id)
        return made

    @property
    def groups(self) -> dict[str, TargetGroup]:
        """Return all groups; a client has only the head's, and Ray the others'."""
        found = {HEAD: TargetGroup(least=1, most=1, choices=tuple(self.provider.choices(self.config, HEAD)))}
        for name, group in self.config.groups.items():
            choices = tuple(self.provider.choices(self.config, name))
            found[name] = TargetGroup(least=group.least, most=group.most, choices=choices)
        return found

    def controller(self, journal: JournalWriter) -> ClusterController:
        return ClusterController(
            self.cluster,
            self.provider,
            journal,
            fold(read_journal(self.folder / "journal")),
            groups=self.groups,
            clock=SystemClock(),
        )

    def drive(self, wish: str) -> ClusterController:
        """Bring the cluster up or down by the controller that `windlass cluster` uses."""
        with closing(JournalWriter(self.folder / "journal", "client", SystemClock())) as journal:
            controller = self.controller(journal)
            controller.want(wish)

            def is_done() -> bool:
                if controller.round():
                    return False
                living = [each for each in controller.state.living() if each.state == "running"]
                wanted = sum(group.least for group in controller.groups.values())
                is_up = len(living) == wanted and not controller.state.open_intents
                return controller.state.is_closed if wish == "down" else is_up

            until(is_done, f"the cluster to be {wish}")
            return controller


def until(condition: Callable[[], object], what: str, *, limit_s: float = 300.0) -> None:
    """Wait for a condition."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, f"waited {limit_s:g} s for {what}"
        time.sleep(0.05)
