from __future__ import annotations

import pytest

from windlass import config
from windlass.core.errors import SpecError
from windlass.sites import Profile
from windlass.sites.beaker import BeakerMount, BeakerPlace, mounts_of

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
    profile = config.load(Profile, GOOD, source="lab").value
    assert profile.beaker.mounts == (BeakerMount(path="/weka/a", weka="a"),)
    assert profile.beaker.results == "/results"


WRONG = [
    ("beaker.workspace=main", "`main` is no full name", "wrong-value"),
    ("beaker.clusters=lab/alpah", "`lab/alpah` is not among the clusters", "unknown-queue"),
    ("beaker.image=me/image", "says neither whose image", "wrong-value"),
    ("beaker.mounts=[{path: /weka/a}]", "names neither a bucket nor a folder", "site-contradiction"),
    ("beaker.mounts=[{path: /weka/a, weka: a, host_path: /b}]", "both a bucket and a folder", "site-contradiction"),
    ("beaker.mounts=[{path: /weka/a, host_path: a}]", "no absolute path", "wrong-value"),
    ("beaker.mounts=[{path: /weka/a, weka: a, clusters: lab/b}]", "none of `beaker.clusters`", "unknown-queue"),
    ("beaker.mounts=[{path: /weka/a, weka: a, read_only: true}]", "may only read", "site-contradiction"),
    ("beaker.results=results", "no absolute path", "wrong-value"),
    ("fs.shared=/home/me", "is on none of `beaker.mounts`", "site-contradiction"),
    ("containers.kind=apptainer", "is a container itself", "setting-unused"),
    ("kind=slurm", "`beaker` has settings", "setting-unused"),
]


@pytest.mark.parametrize(("override", "message", "code"), WRONG)
def test_what_contradicts(override: str, message: str, code: str) -> None:
    with pytest.raises(SpecError) as caught:
        config.load(Profile, GOOD, source="lab", overrides=[override])
    assert [problem.code for problem in caught.value.problems] == [code]
    assert message in caught.value.problems[0].message


def test_a_mount_is_everywhere_or_where_it_says() -> None:
    here = BeakerMount(path="/x", weka="x", clusters=("a",))
    place = BeakerPlace(mounts=(here, BeakerMount(path="/y", weka="y")))
    assert mounts_of(place, ("a",)) == place.mounts
    assert mounts_of(place, ("a", "b")) == place.mounts[1:]
