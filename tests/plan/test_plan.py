from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.plan.sample import FULL, plan_of
from windlass.core.codec import decode, encode
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.plan.plan import Plan
from windlass.plan.site import Site, SiteResources
from windlass.sites.profile import Profile


def data() -> Any:
    return plan_of(FULL).to_data()


def test_a_task_by_name() -> None:
    with pytest.raises(NotFoundError, match="no task `trian` in grpo") as caught:
        plan_of(FULL).task("trian")
    assert caught.value.hint == "did you mean `train`?"


def test_a_plan_of_another_version_is_refused() -> None:
    with pytest.raises(
        PreconditionError,
        match=r"another version of windlass: its format is `windlass\.plan/9`, not `windlass\.plan/3`",
    ) as caught:
        Plan.from_data({**data(), "schema": "windlass.plan/9"})
    assert caught.value.code == "other-version"


@pytest.mark.parametrize("broken", [None, [], 3, {}])
def test_what_is_no_plan_is_refused(broken: object) -> None:
    with pytest.raises(PreconditionError, match="another version of windlass: its format is"):
        Plan.from_data(broken)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": 3}, "the plan is invalid: expected a list, not 3"),
        ({"extra": 3}, "the plan is invalid: Plan has no field `extra`"),
        ({"name": 3}, "the plan is invalid: expected str, not 3"),
        ({"name": "other"}, "the plan was changed: it states the hash"),
        ({"pins": None}, "the plan is invalid: expected the fields of Pins, not None"),
    ],
)
def test_a_changed_plan_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(PreconditionError, match=message) as caught:
        Plan.from_data({**data(), **change})
    assert caught.value.code == "plan-broken"


def test_numbers_keep_their_kind() -> None:
    site = Site(machine=SiteResources(num_gpus=1, num_cpus=2, memory_bytes=3))
    read = decode(Site, encode(site))
    assert read == site
    assert read.machine is not None
    assert type(read.machine.num_cpus) is float


def test_a_site_keeps_its_decoded_profile() -> None:
    profile = Profile(name="lab", kind="slurm")
    site = Site.of(profile)
    assert site.profile is profile
    read = decode(Site, encode(site))
    assert read.profile == profile
    assert read.profile is read.profile
    assert replace(read, partition="gpu").profile is read.profile
    assert Site().profile is None
