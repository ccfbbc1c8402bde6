"""Up and down of rented machines against a cloud in memory: what a changed file, a dead client and a failed clean-up leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.test_plan import AWS, cloud, config_of
from tests.cluster.test_reconcile import Lab, nowhere
from windlass.cluster import up
from windlass.cluster.config import ClusterConfig
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import Choice
from windlass.cluster.places import MachinePlace
from windlass.cluster.state import Intent, intent_data
from windlass.cluster.up import begin, bring_down, bring_up
from windlass.core.errors import PreconditionError
from windlass.runs.home import Home

OTHER_REGION = AWS.replace("us-west-2", "eu-west-1")


def test_a_cluster_of_which_only_the_folder_was_made_has_its_file(tmp_path: Path) -> None:
    home = ClusterHome.create(Home(tmp_path), config_of(AWS))
    assert home.config() == config_of(AWS)


@pytest.mark.parametrize("before", ["asked", "down"])
def test_another_region_is_refused_while_machines_may_exist_in_the_first(tmp_path: Path, before: str) -> None:
    lab = Lab(tmp_path)
    lab.want("up")
    with lab.home.acting() as journal:
        if before == "asked":
            intent = Intent(token="1", group="head", count=1, choice=Choice(type="small"), asked_at=0.0)
            journal.append("cluster.intent", **intent_data(intent))
    if before == "down":
        lab.want("down")
    with pytest.raises(PreconditionError, match=r"other settings: place") as caught:
        bring_up(lab.home, config_of(OTHER_REGION), lab.place, archive=tmp_path, report=print, clock=lab.clock)
    assert caught.value.code == "cluster-changed"
    assert lab.home.config() == config_of(AWS)


def test_down_is_repeated_until_what_the_place_has_besides_machines_is_removed(tmp_path: Path) -> None:
    lab, calls = Lab(tmp_path), []

    def close() -> None:
        calls.append("close")
        if len(calls) == 1:
            raise PreconditionError("the group of addresses is in use", code="provider-refused")

    lab.cloud.window_s = 0.0
    place = MachinePlace(provider=lab.cloud, host=lab.place.host, close=close)
    lab.want("up")
    with pytest.raises(PreconditionError):
        bring_down(lab.home, config_of(AWS), place, report=print)
    for _ in range(2):
        bring_down(lab.home, config_of(AWS), place, report=print)
    assert calls == ["close", "close"]
    assert lab.home.state().is_closed


@pytest.mark.parametrize("is_in_the_way", [False, True])
def test_what_a_closed_cluster_left_is_removed_before_its_name_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_the_way: bool
) -> None:
    lab, calls = Lab(tmp_path), list[tuple[ClusterConfig, str]]()

    def open_old(config: ClusterConfig, *, cluster: str, folder: Path, archive: Path) -> MachinePlace:
        def close() -> None:
            calls.append((config, cluster))
            if is_in_the_way:
                raise PreconditionError("the group of addresses is in use", code="provider-refused")

        return MachinePlace(provider=lab.cloud, host=nowhere, close=close)

    monkeypatch.setattr(up, "open_place", open_old)
    with lab.home.acting() as journal:
        journal.append("cluster.wanted", state="down", why="")
        journal.append("cluster.closed")
    old, new = lab.home.id, config_of(OTHER_REGION)
    if is_in_the_way:
        with pytest.raises(PreconditionError, match="something else is left of it: the group of") as caught:
            begin(Home(tmp_path), new, tmp_path, report=print)
        assert (caught.value.hint, caught.value.code) == ("windlass cluster down lab", "provider-refused")
        assert (lab.home.id, lab.home.config()) == (old, config_of(AWS))
    else:
        assert begin(Home(tmp_path), new, tmp_path, report=print).id != old
        assert lab.home.config() == new
    assert calls == [(config_of(AWS), old)]


@pytest.mark.parametrize(
    ("limits", "deadline_s"),
    [
        ("", None),
        ("ttl: 3h", 3 * 3600.0),
        ("price: {total: 1}", 2 * 3600.0),
        ("ttl: 3h\nprice: {total: 1}", 2 * 3600.0),
        ("ttl: 1h\nprice: {total: 1}", 3600.0),
    ],
)
def test_a_head_ends_itself_at_its_time_and_when_it_alone_has_cost_the_total(
    tmp_path: Path, limits: str, deadline_s: float | None
) -> None:
    lab = Lab(tmp_path, AWS + limits)
    priced = cloud()
    place = MachinePlace(provider=priced, host=nowhere, shutdown="shutdown now")
    with pytest.raises(AssertionError, match="no machine is reached"):
        bring_up(lab.home, config_of(AWS + limits), place, archive=tmp_path, report=print, clock=priced.clock)
    (head,) = priced.machines.values()
    if deadline_s is None:
        assert head.deadline_at is None
    else:
        assert head.deadline_at == pytest.approx(head.node.born_at + deadline_s, abs=2.0)
