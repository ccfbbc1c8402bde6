"""Start of Ray's autoscaler on the head: `python -m windlass.cluster.scaling.monitor FOLDER GCS_ADDRESS`.

Writes the templates of the groups' nodes for the head's store and the configuration for Ray, checks it, and becomes Ray's
monitor, whose log is `logs/monitor.log`, rotated by Ray. Runs in the user's Python, with `code.zip` of the folder on the path.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from windlass.cluster.config import ClusterConfig
from windlass.cluster.nodes.set_up import set_up_of
from windlass.cluster.scaling.ray_config import check_ray_config, ray_config
from windlass.config.loading import load_config
from windlass.core.errors import PreconditionError, WindlassError
from windlass.core.files import write_atomic
from windlass.supervise.node.files import setup_line
from windlass.supervise.node.spec import NodeFolder, NodeSpec

__all__ = ["CONFIG", "INITIAL_DONE", "group_template", "main", "read_config", "write_ray_config"]

CONFIG = "ray-autoscaler.yaml"
INITIAL_DONE = "initial-done"
_LIBRARIES = {"aws": "boto3"}


def read_config(folder: Path) -> ClusterConfig:
    """Return the cluster's file in the head's folder."""
    path = folder / "cluster.yaml"
    return load_config(ClusterConfig, path.read_text(), source=str(path)).value


def group_template(config: ClusterConfig, head: NodeSpec, group: str) -> NodeSpec:
    """Return what the nodes of a group have in common."""
    found = config.groups[group]
    of_group = set_up_of(config, found)
    if config.files:
        of_group["host_setup"] = (setup_line(head.cluster), *of_group["host_setup"])
    return replace(
        head,
        **of_group,
        token="",
        number=-1,
        head="",
        address="",
        python=config.python,
        resources=found.resources,
        labels=found.labels,
        auth_token="",
        group=group,
        instance="",
        store_port=0,
        ray_port=0,
        is_scaled=False,
    )


def write_ray_config(folder: Path, config: ClusterConfig, cluster: str) -> None:
    """Write Ray's file, which its monitor reads anew each turn, if it differs. JSON is YAML."""
    is_first = not (folder / INITIAL_DONE).exists()
    content = json.dumps(ray_config(config, cluster=cluster, folder=folder, is_first=is_first)).encode()
    path = folder / CONFIG
    if not path.exists() or path.read_bytes() != content:
        write_atomic(path, content)


def main(arguments: Sequence[str]) -> NoReturn:
    """Prepare the folder and become the monitor; returns only when that is impossible."""
    try:
        argv = _prepare(Path(arguments[0]), arguments[1])
    except WindlassError as error:
        sys.stderr.write(f"{error.message}\n  hint: {error.hint}\n")
        sys.exit(1)
    os.execv(sys.executable, argv)


def _prepare(folder: Path, address: str) -> list[str]:
    config, head = read_config(folder), NodeFolder(folder).read_spec()
    library = _LIBRARIES.get(config.place.kind)
    if library and importlib.util.find_spec(library) is None:
        message = f"`{config.python}` on the head has no {library}, with which machines are made"
        raise PreconditionError(message, hint=f"add `pip install {library}` to `setup`", code="setup-failed")
    ray = importlib.util.find_spec("ray")
    if ray is None or ray.origin is None:
        message = f"`{config.python}` on the head has no Ray"
        raise PreconditionError(message, hint="add `pip install ray` to `setup`", code="setup-failed")
    for group in config.groups:
        write_atomic(folder / f"group-{group}.json", group_template(config, head, group).to_json())
    write_ray_config(folder, config, head.cluster)
    check_ray_config(ray_config(config, cluster=head.cluster, folder=folder, is_first=True))
    program = Path(ray.origin).parent / "autoscaler" / "v2" / "monitor.py"
    options = [f"--logs-dir={folder / 'logs'}", f"--gcs-address={address}", f"--autoscaling-config={folder / CONFIG}"]
    return [sys.executable, "-u", str(program), *options]


if __name__ == "__main__":
    main(sys.argv[1:])
