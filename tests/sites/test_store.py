from __future__ import annotations

import stat
from pathlib import Path

import pytest

from windlass.core.errors import AccessError, PreconditionError, SpecError, UsageError
from windlass.sites.profile import Partition, Profile, SiteNetwork, SiteVariable
from windlass.sites.store import (
    find_site,
    load_profile,
    profile_path,
    save_site,
    shipped_names,
    site_names,
    sites_folder,
)


def put(home: Path, name: str, text: str) -> Path:
    path = sites_folder(home) / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_the_users_own_profile_hides_a_shipped_one(tmp_path: Path) -> None:
    assert find_site("isambard", tmp_path).about
    put(tmp_path, "isambard", "name: isambard\nabout: mine\n")
    assert find_site("isambard", tmp_path).about == "mine"
    assert profile_path("isambard", None) != profile_path("isambard", tmp_path)


def test_names_are_those_of_both(tmp_path: Path) -> None:
    put(tmp_path, "mine", "name: mine\n")
    put(tmp_path, "Not a name", "")
    (sites_folder(tmp_path) / "mine.checks.jsonl").write_text("{}\n")
    assert site_names(tmp_path) == sorted([*shipped_names(), "mine"])


def test_an_unknown_site_is_answered_with_the_nearest_and_the_list(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find_site("isambrad", tmp_path)
    assert caught.value.code == "unknown-site"
    assert caught.value.hint.startswith("did you mean `isambard`? Sites: local, ai2-google, ")
    assert "`windlass site add isambrad --ssh USER@HOST` adds one" in caught.value.hint


@pytest.mark.parametrize("name", ["../isambard", "fabrics/efa", "", "A"])
def test_a_name_is_no_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        find_site(name, tmp_path)


def test_a_broken_profile_is_refused_with_every_place(tmp_path: Path) -> None:
    path = put(tmp_path, "mine", "name: mine\nscheduler:\n  partitio: gpu\nfs: {shared: 3}\n")
    with pytest.raises(SpecError) as caught:
        find_site("mine", tmp_path)
    assert [problem.code for problem in caught.value.problems] == ["unknown-key", "invalid-value"]
    assert str(caught.value.problems[0].place).startswith(f"{path}:3:3")
    assert caught.value.problems[0].hint == "did you mean `partition`?"


def test_a_profile_is_called_like_its_file(tmp_path: Path) -> None:
    put(tmp_path, "mine", "name: other\n")
    with pytest.raises(UsageError, match=r"the profile in mine.yaml is named `other`"):
        find_site("mine", tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="cannot read the site profile"):
        load_profile(tmp_path)


def test_what_is_saved_is_found(tmp_path: Path) -> None:
    profile = Profile(
        name="mine", partitions={"gpu": Partition(gpus=4)}, net=SiteNetwork(vars=(SiteVariable(name="A"),))
    )
    path = save_site(profile, tmp_path)
    assert find_site("mine", tmp_path) == profile
    assert "# Unknown so far:\n#   fs.shared\n" in path.read_text()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["mine.yaml"]


def test_only_a_file_that_somebody_edited_is_kept(tmp_path: Path) -> None:
    path = save_site(Profile(name="mine"), tmp_path)
    save_site(Profile(name="mine", about="second"), tmp_path)
    path.write_text(path.read_text() + "# my own line\n")
    with pytest.raises(PreconditionError) as caught:
        save_site(Profile(name="mine", about="third"), tmp_path)
    assert caught.value.code == "site-edited"
    assert "--replace" in caught.value.hint
    assert find_site("mine", tmp_path).about == "second"
    save_site(Profile(name="mine", about="third"), tmp_path, replaces_edits=True)
    assert find_site("mine", tmp_path).about == "third"


def test_a_file_that_windlass_never_wrote_counts_as_edited(tmp_path: Path) -> None:
    put(tmp_path, "mine", "name: mine\n")
    with pytest.raises(PreconditionError):
        save_site(Profile(name="mine"), tmp_path)


@pytest.mark.parametrize("name", ["local", "A b", "../x"])
def test_some_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        save_site(Profile(name=name), tmp_path)
    assert caught.value.code == "invalid-name"
    assert not sites_folder(tmp_path).exists()


def test_a_fabric_gives_what_the_site_does_not_say(tmp_path: Path) -> None:
    put(tmp_path, "mine", "name: mine\nnet: {fabric: tcpxo, vars: [NCCL_PROTO=Simple, MINE=1]}\n")
    net = find_site("mine", tmp_path).net
    values = [(variable.name, variable.value) for variable in net.vars if variable.name in ("NCCL_PROTO", "MINE")]
    assert values == [("NCCL_PROTO", "Simple"), ("MINE", "1")]
    assert (net.interface, net.interconnect) == ("enp0s12", "tcpxo")
    assert any(variable.name == "NCCL_FASTRAK_CTRL_DEV" for variable in net.vars)
    assert any("a3-megagpu" in source.url for source in find_site("mine", tmp_path).sources)
    plain = load_profile(sites_folder(tmp_path) / "mine.yaml", merges_fabric=False)
    assert len(plain.net.vars) == 2


def test_merging_a_fabric_twice_changes_nothing(tmp_path: Path) -> None:
    put(tmp_path, "mine", "name: mine\nnet: {fabric: jupiter-ib}\n")
    once = find_site("mine", tmp_path)
    save_site(once, tmp_path, replaces_edits=True)
    assert find_site("mine", tmp_path) == once


def test_an_unknown_fabric_is_answered_with_the_nearest(tmp_path: Path) -> None:
    put(tmp_path, "mine", "name: mine\nnet: {fabric: jupiterib}\n")
    with pytest.raises(UsageError) as caught:
        find_site("mine", tmp_path)
    assert (caught.value.code, caught.value.hint) == ("unknown-name", "did you mean `jupiter-ib`?")
