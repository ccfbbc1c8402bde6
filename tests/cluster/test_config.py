"""Settings of a cluster's file that cannot be honoured are refused where they are written."""

from __future__ import annotations

import pytest

from windlass.cluster.config import ClusterConfig
from windlass.config.loading import load_config
from windlass.core.errors import SpecError

SSH = """name: lab
place: {ssh: {hosts: [a, b, c]}}
groups:
  workers:
    count: 2
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "message", "hint"),
    [
        (
            "count: 2",
            "min: 1\n    max: 2",
            6,
            "`max` is 2 and `min` 1, but the hosts of `ssh` exist: nothing scales",
            "write `count: 2`, or as many as you want",
        ),
        (
            "count: 2",
            "count: 2\n    idle: 5m",
            6,
            "`idle` is for nodes that Ray starts and ends, and the hosts of `ssh` exist",
            "remove `idle`",
        ),
        (
            "groups:",
            "image: a b\ngroups:",
            3,
            "invalid image `a b`",
            "write one such as `rayproject/ray:2.60.0`",
        ),
        (
            "count: 2",
            "count: 2\n    image_options: --gpus all",
            6,
            "`image_options` need `image`",
            "add `image`, or remove them",
        ),
        (
            "count: 2",
            "count: 2\n    image: a\n    image_options: [--gpus all, --shm-size 1g]",
            7,
            "`--shm-size` cannot be honoured: the container has the machine's /dev/shm",
            "remove it",
        ),
        (
            "groups:",
            "image: a\nimage_options: ubuntu\ngroups:",
            4,
            "`ubuntu` is not an option",
            "write one such as `--volume /data:/data`",
        ),
        (
            "groups:",
            "image: a\nimage_options: --pull=often\ngroups:",
            4,
            "invalid `--pull=often`",
            "write `--pull=` and one of: always, missing, never",
        ),
        (
            "groups:",
            "image_engine: podman\ngroups:",
            3,
            "`image_engine` needs `image`",
            "add `image`, or remove it",
        ),
        (
            "groups:",
            "image: a\nfiles: {/data: .}\ngroups:",
            4,
            "`/data` is not seen in containers, which share the user's home with the machine",
            "write `~/NAME`, and in `setup` what puts it at /data",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_at_its_line(old: str, new: str, line: int, message: str, hint: str) -> None:
    assert load_config(ClusterConfig, SSH, source="cluster.yaml").value.groups
    with pytest.raises(SpecError) as caught:
        load_config(ClusterConfig, SSH.replace(old, new), source="cluster.yaml")
    (problem,) = caught.value.problems
    assert problem.place is not None
    assert (problem.place.line, problem.message, problem.hint) == (line, message, hint)


AWS = """name: lab
place: {aws: {region: us-west-2}}
head: {types: m5.large}
groups:
  workers: {types: [g5.xlarge], max: 4}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "message", "hint"),
    [
        ("us-west-2", "us west 2", 2, "`place.aws.region` cannot be the text `us west 2`", "us-west-2"),
        (
            "us-west-2",
            "us-west-2, zones: us-east-1a",
            2,
            "the zone `us-east-1a` is not in the region us-west-2",
            "us-west-2a",
        ),
        ("region: us-west-2", "user: root", 2, "no region", "`region: us-west-2`"),
        ("region: us-west-2", "region: us-west-2, regions: us-east-1", 2, "both `region` and `regions`", "keep one"),
        ("region: us-west-2", "regions: [us-east-1, us-east-1]", 2, "duplicate region `us-east-1`", "remove one"),
        ("region: us-west-2", "regions: [us east]", 2, "cannot be the text `us east`", "us-west-2"),
        (
            "region: us-west-2",
            "regions: [us-west-2, us-east-1], zones: [us-east-1a, eu-west-1a]",
            2,
            "the zone `eu-west-1a` is not in the regions us-west-2, us-east-1",
            "us-west-2a",
        ),
        ("region: us-west-2", "regions: [us-west-1, a], zones: us-west-10a", 2, "the zone `us-west-10a` is not", "1a"),
        ("region: us-west-2", "regions: [a, b], subnets: subnet-1", 2, "a subnet is in one region", "one `region`"),
        ("region: us-west-2", "regions: [a, b], security_groups: sg-1", 2, "`sg-1` is in one region", "write a name"),
        ("region: us-west-2", "regions: [a, b], image: ami-1", 2, "an image is in one region", "`images: {a: ami-1"),
        ("region: us-west-2", "regions: [a, b], images: {a: ami-1}", 2, "`images` has none for b", "`b: ami-...`"),
        ("region: us-west-2", "regions: [a, b], images: {c: ami-1}", 2, "`images` names c", "add the region"),
        (
            "{region: us-west-2}}\nhead: {types: m5.large}",
            "{regions: [a, b]}}\nhead: {types: m5.large, options: {ImageId: ami-1}}",
            3,
            "`ImageId` is of one region",
            "one `region`",
        ),
        ("max: 4", "max: 4000000", 5, "`groups.workers.max` is `4000000`, which is out of range", "100000"),
        ("max: 4", "max: 4, resources: {CPU: -1}", 5, "`groups.workers.resources.CPU` is `-1`", "at least 0"),
        ("max: 4", "max: 4, resources: {gpu: 1}", 5, "Ray's resource is `GPU`, not `gpu`", "write `GPU`"),
        ("max: 4", "max: 4, labels: {a: 'b,c'}", 5, "`groups.workers.labels.a` cannot be the text `b,c`", "63"),
        ("[g5.xlarge]", "g5 xlarge", 5, "invalid machine type `g5 xlarge`", "`g5.xlarge`"),
        ("groups:", "files: {/data: ''}\ngroups:", 4, "the path here of `/data` is empty", "./folder"),
        ("groups:", "files: {~you/data: .}\ngroups:", 4, "invalid path on nodes: `~you/data`", "from `/`"),
        ("groups:", "python: ''\ngroups:", 4, "`python` is empty", "remove it"),
        ("aws: {region: us-west-2}", "virtual: {}", 3, "no machine type `m5.large`", "use one of: small, large"),
        ("types: m5.large", "types: m5.large, image: -a", 3, "invalid image `-a`", "rayproject/ray"),
    ],
)
def test_mistakes_of_a_tired_user(old: str, new: str, line: int, message: str, hint: str) -> None:
    assert load_config(ClusterConfig, AWS, source="cluster.yaml").value.groups
    with pytest.raises(SpecError) as caught:
        load_config(ClusterConfig, AWS.replace(old, new), source="cluster.yaml")
    found = next(problem for problem in caught.value.problems if message in problem.message)
    assert found.place is not None
    assert (found.place.line, hint in found.hint) == (line, True), found


def test_a_region_has_its_own_zones_and_image() -> None:
    regions = "regions: [us-west-2, us-east-1], zones: [us-east-1b, us-west-2-lax-1a, us-east-1a]"
    images = "images: {us-west-2: ami-1, us-east-1: ami-2}"
    text = AWS.replace("region: us-west-2", f"{regions}, {images}")
    config = load_config(ClusterConfig, text, source="cluster.yaml").value
    place = config.in_region("us-east-1").place.aws
    assert place is not None
    assert (place.all_regions, place.zones, place.image) == (("us-east-1",), ("us-east-1b", "us-east-1a"), "ami-2")
    assert list(place.check()) == []
    assert config.in_region("") == config
    alone = load_config(ClusterConfig, AWS, source="cluster.yaml").value
    assert alone.in_region("us-west-2") == alone


def test_virtual_machines_have_no_gpus() -> None:
    text = "{name: lab, place: {virtual: {}}, groups: {w: {gpus: 1, max: 2}}}"
    with pytest.raises(SpecError, match="virtual machines have no `gpus`"):
        load_config(ClusterConfig, text, source="cluster.yaml")


def test_places_that_exclude_each_other_are_one_problem() -> None:
    text = "{name: lab, place: {ssh: {hosts: [a]}, aws: {region: us-west-2}}}"
    with pytest.raises(SpecError) as caught:
        load_config(ClusterConfig, text, source="cluster.yaml")
    assert [problem.message for problem in caught.value.problems] == ["several places: ssh, aws"]
