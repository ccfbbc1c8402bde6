"""Options of a node's container, read as docker and podman read them."""

from __future__ import annotations

import pytest

from windlass.cluster.image_options import option_problems


@pytest.mark.parametrize(
    "options",
    [
        ("--volume /data:/data", "-v/data:/data:ro", "-v=/a:/a", "--gpus all", "--memory-swap -1", "-m4g"),
        ("--ulimit", "nofile=65536:65536", "--privileged", "--device=/dev/fuse", "--read-only --tmpfs /x"),
        ("--env A=WINDLASS_B", "-eA=windlass.", "-e=A=1", "--label a=windlass.token", "-la", "--env-file x"),
        ("--pull always", "--pull=never", "-q", "--security-opt 'label=type:a b'", "--new-option value"),
        (),
    ],
)
def test_what_an_engine_understands_is_left_to_it(options: tuple[str, ...]) -> None:
    assert list(option_problems(options)) == []


@pytest.mark.parametrize(
    ("option", "message"),
    [
        *(
            (each, "`-u` cannot be honoured: the container runs as")
            for each in ("-u root", "-uroot", "-u=root", "-qu0")
        ),
        *((each, "`-w` cannot be honoured") for each in ("-w/tmp", "-w /tmp")),
        *((each, "`-h` cannot be honoured: Ray needs") for each in ("-hfoo", "-h foo", "-h")),
        *((each, "`-d` cannot be honoured: windlass makes") for each in ("-d", "-dti", "-d=false")),
        ("-itP", "`-i` cannot be honoured"),
        ("-qP", "`-P` cannot be honoured: Ray needs"),
        ("--label windlass.token=x", "`--label windlass.token=x` cannot be honoured: labels `windlass.*` are"),
        ("--label=windlass.run", "`--label windlass.run` cannot be honoured"),
        ("-lwindlass.token=x", "`-l windlass.token=x` cannot be honoured"),
        ("--label-file /x", "`--label-file` cannot be honoured"),
        ("--env WINDLASS_NODE=x", "`--env WINDLASS_NODE=x` cannot be honoured: variables `WINDLASS_*` are"),
        ("-eWINDLASS_NODE", "`-e WINDLASS_NODE` cannot be honoured"),
        ("-e=WINDLASS_NODE=", "`-e WINDLASS_NODE=` cannot be honoured"),
        *(
            (f"{each} x", f"`{each}` cannot be honoured")
            for each in (
                "--pod",
                "--pod-id-file",
                "--uidmap",
                "--gidmap",
                "--cgroups",
                "--sdnotify",
                "--timeout",
                "--root",
            )
        ),
        *((each, f"`{each}` cannot be honoured") for each in ("--help", "--replace", "--rm")),
        ("--volume /a:/a ubuntu", "`ubuntu` is not an option"),
        ("--privileged true", "`true` is not an option"),
        ("--rm=true -- ubuntu", "`--rm` cannot be honoured"),
        ("-", "`-` is not an option"),
        ("--", "`--` is not an option"),
        ("--volume", "`--volume` has no value"),
        ("--volume --privileged", "`--volume` has no value"),
        ("-z", "`-z` is not an option of `docker run`"),
        ("--pull often", "invalid `--pull=often`"),
        ("--volume 'a", "invalid option `--volume 'a`"),
    ],
)
def test_what_would_break_supervision_is_refused(option: str, message: str) -> None:
    found = list(option_problems(("--volume /data:/data", option)))
    assert found
    assert (found[0][0], found[0][1][: len(message)]) == (1, message)
