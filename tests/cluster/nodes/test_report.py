"""Replies of nodes that are damaged, hostile, or of another version."""

from __future__ import annotations

import json
from typing import cast

import pytest

from windlass.backends.site_shell import ShellResult, SiteShell
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.nodes.report import parse_report
from windlass.core.errors import PreconditionError

NODE = {"kind": "node", "token": "t", "state": "ready", "instance": "i-1"}
MACHINE = {"kind": "machine", "id": "i-1", "token": "t", "group": "gpu", "state": "running", "choice": {}}


def test_fields_of_a_newer_version_are_ignored() -> None:
    lines = [{**NODE, "new": 1}, {**MACHINE, "new": 1, "choice": {"type": "small", "new": 1}}]
    report = parse_report("\n".join(map(json.dumps, lines)), "head")
    assert (report.statuses["i-1"].state, report.machines[0].choice.type) == ("ready", "small")


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "3",
        "{",
        json.dumps({**MACHINE, "choice": []}),
        json.dumps({**MACHINE, "choice": None}),
        json.dumps({**MACHINE, "born_at": "x"}),
        json.dumps({**MACHINE, "id": 3}),
        json.dumps({**MACHINE, "address": {}}),
        json.dumps({**NODE, "instance": []}),
        json.dumps({**NODE, "message": 3}),
        json.dumps({**NODE, "ready_at": "x"}),
    ],
)
def test_anything_else_is_an_error_that_names_the_head(line: str) -> None:
    with pytest.raises(PreconditionError, match="head: invalid reply") as caught:
        parse_report(line, "head")
    assert caught.value.code == "invalid-reply"


CLAIM = '{"token": "t", "group": "gpu", "at": 1.0}'


class Shell:
    """Shell of a host that replies with a text."""

    name = "gpu1"

    def __init__(self, text: str) -> None:
        self.text = text

    def run(self, argv: object, **_: object) -> ShellResult:
        return ShellResult(0, self.text, "")


@pytest.mark.parametrize(
    "status", ["[]", "{", '{"state": 3}', '{"token": "t"}', '{"token": "t", "state": "x", "code": 1}']
)
def test_a_status_on_a_host_that_is_damaged_is_an_error_that_names_the_host(status: str) -> None:
    host = NodeHost(cast(SiteShell, Shell(status)), "c-1")
    with pytest.raises(PreconditionError, match="gpu1: invalid reply"):
        host.status("t")
    listed = NodeHost(cast(SiteShell, Shell(CLAIM + "\t" + status)), "c-1")
    with pytest.raises(PreconditionError, match="gpu1: invalid reply"):
        listed.claims()


@pytest.mark.parametrize("claim", ["[]", "{}", "{", '{"token": "t", "group": "g", "at": []}'])
def test_a_claim_on_a_host_that_is_damaged_is_an_error_that_names_the_host(claim: str) -> None:
    assert NodeHost(cast(SiteShell, Shell(CLAIM + "\t")), "c-1").claims()[0][0]["token"] == "t"
    with pytest.raises(PreconditionError, match="gpu1: invalid reply"):
        NodeHost(cast(SiteShell, Shell(claim + "\t")), "c-1").claims()


def test_a_status_of_a_newer_agent_is_read() -> None:
    found = NodeHost(cast(SiteShell, Shell('{"token": "t", "state": "ready", "new": 1}')), "c-1").status("t")
    assert found is not None
    assert found.state == "ready"
