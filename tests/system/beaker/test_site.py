"""`windlass site add` and `check` of a Beaker site, against the fake through the genuine client."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from windlass.core.errors import AccessError
from windlass.launcher.beaker.site import check_beaker_site
from windlass.launcher.sites.add import add_site
from windlass.sites.profile import Profile
from windlass.sites.store import find_site
from windlass.testing.beaker import FakeBeaker

pytestmark = pytest.mark.system


def add(home: Path, *overrides: str) -> Profile:
    add_site("mine", home, overrides=["kind=beaker", *overrides], today="2026-11-21")
    return find_site("mine", home)


def test_adding_takes_the_default_workspace_and_says_where_from(home: Path, fake: FakeBeaker) -> None:
    profile = add(home, "beaker.clusters=lab/alpha")
    assert profile.beaker.workspace == fake.workspace
    assert profile.sources[-1].facts == ("beaker.workspace",)
    assert profile.sources[-1].url == fake.address


def test_what_the_user_says_is_kept(home: Path, fake: FakeBeaker) -> None:
    fake.add_workspace("lab/other")
    profile = add(home, "beaker.workspace=lab/other", "beaker.image=beaker:me/image")
    found = {finding.name: finding for finding in check_beaker_site(profile, home=home).results}
    assert {name: finding.status for name, finding in found.items()} == {
        "storage": "not-tried",
        "account": "ok",
        "workspace": "ok",
        "secrets": "ok",
        "image": "ok",
    }
    assert found["account"].message.startswith("me, at http://")


def test_what_is_not_there_is_named(home: Path, fake: FakeBeaker) -> None:
    profile = add(home, "beaker.workspace=lab/man", "beaker.image=beaker:me/imag")
    check = check_beaker_site(profile, home=home)
    failed = {finding.name for finding in check.results if finding.status == "failed"}
    assert failed == {"workspace", "secrets", "image"}
    assert not check.is_ok


def test_without_a_token_nothing_is_written(home: Path, fake: FakeBeaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEAKER_TOKEN", "wrong")
    with pytest.raises(AccessError) as caught:
        add(home)
    assert caught.value.code == "beaker-token"
    assert not (home / "sites" / "mine.yaml").exists()
    profile = dataclasses.replace(Profile(name="mine", kind="beaker"))
    found = check_beaker_site(profile, home=home).results
    assert [finding.name for finding in found if finding.status == "failed"] == ["account"]
