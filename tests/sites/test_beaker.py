from __future__ import annotations

import pytest

from windlass.config.loading import load_config
from windlass.core.errors import SpecError
from windlass.sites.beaker import BeakerMount, BeakerPlace, mounts_of
from windlass.sites.profile import Profile

GOOD = """\
name: lab
kind: beaker
fs: {shared: "/weka/a/${user}"}
beaker:
  workspace: lab/main
  clusters: [lab/alpha]
  image: beaker:me/image
  mounts: [{path: /weka/a, weka: a}]
partitions: {lab/alpha: {gpus: 8}}
"""


def test_a_whole_profile() -> None:
    profile = load_config(Profile, GOOD, source="lab").value
    assert profile.beaker.mounts == (BeakerMount(path="/weka/a", weka="a"),)
    assert profile.beaker.results == "/results"


WRONG = [
    ("beaker.workspace=main", "`main` is not a full name", "invalid-value"),
    ("beaker.clusters=lab/alpah", "cluster `lab/alpah` is not in `partitions`", "unknown-queue"),
    ("beaker.image=me/image", "invalid image `me/image`", "invalid-value"),
    ("beaker.mounts=[{path: /weka/a}]", "has neither `weka` nor `host_path`", "conflicting-options"),
    (
        "beaker.mounts=[{path: /weka/a, weka: a, host_path: /b}]",
        "has both `weka` and `host_path`",
        "conflicting-options",
    ),
    ("beaker.mounts=[{path: /weka/a, host_path: a}]", "not an absolute path", "invalid-value"),
    ("beaker.mounts=[{path: /weka/a, weka: a, clusters: lab/b}]", "not in `beaker.clusters`", "unknown-queue"),
    (
        "beaker.mounts=[{path: /weka/a, weka: a, read_only: true}]",
        "fs.shared is on the read-only mount",
        "conflicting-options",
    ),
    ("beaker.results=results", "not an absolute path", "invalid-value"),
    ("fs.shared=/home/me", "is not on any of `beaker.mounts`", "conflicting-options"),
    ("containers.kind=apptainer", "already runs in a container", "setting-unused"),
    ("kind=slurm", "`beaker` has settings", "setting-unused"),
]


@pytest.mark.parametrize(("override", "message", "code"), WRONG)
def test_what_contradicts(override: str, message: str, code: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_config(Profile, GOOD, source="lab", overrides=[override])
    assert [problem.code for problem in caught.value.problems] == [code]
    assert message in caught.value.problems[0].message


def test_a_mount_is_everywhere_or_where_it_says() -> None:
    here = BeakerMount(path="/x", weka="x", clusters=("a",))
    place = BeakerPlace(mounts=(here, BeakerMount(path="/y", weka="y")))
    assert mounts_of(place, ("a",)) == place.mounts
    assert mounts_of(place, ("a", "b")) == place.mounts[1:]
