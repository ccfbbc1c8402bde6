"""Import of Ray's cluster files, the form of 2019 included: each key is honoured, or refused by name with the reason.

    ClusterImport = read_ray_file(text, source="cluster.yaml")

What Ray ignores too, and what differs only in speed, becomes a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from windlass.cluster.config import ClusterConfig
from windlass.cluster.imports.ray_file import RayFile
from windlass.cluster.imports.ray_reading import RayReading
from windlass.config.decode import DocumentDecoder
from windlass.config.document import MappingNode, Node, ScalarNode, SequenceNode, kind_of, node_of_data
from windlass.config.emit import to_yaml
from windlass.config.loading import raise_any
from windlass.config.yaml_reader.parser import MAX_TEXT, compose, too_large
from windlass.core.dataclass import dataclass
from windlass.core.errors import Problem, SourcePlace, SpecError

__all__ = ["ClusterImport", "is_ray_file", "read_ray_file"]

_PROVIDERS = ("local", "aws")
_NOT_HERE = "only `local` and `aws` are supported"
_REFUSED: Mapping[str, str] = {
    "provider.module": "providers of your own are Python classes of Ray; write `place` in a file of ours",
    "provider.namespace": _NOT_HERE,
    "provider.location": _NOT_HERE,
    "provider.resource_group": _NOT_HERE,
    "provider.subscription_id": _NOT_HERE,
    "provider.msi_identity_id": _NOT_HERE,
    "provider.msi_identity_principal_id": _NOT_HERE,
    "provider.autoscaler_service_account": _NOT_HERE,
    "provider.autoscaler_role": _NOT_HERE,
    "provider.autoscaler_role_binding": _NOT_HERE,
    "provider.project_id": _NOT_HERE,
    "provider.gcp_credentials": _NOT_HERE,
    "provider.vsphere_config": _NOT_HERE,
    "provider.use_external_head_ip": "remove it; head and workers are reached alike",
    "provider.aws_credentials": "credentials are those of your environment, as `aws sts get-caller-identity` shows",
    "provider.cloudwatch": "CloudWatch's agents are not installed; remove it, and install them in `setup_commands`",
    "provider.disable_node_updaters": "machines are always set up by windlass; remove it",
    "provider.coordinator_address": "no coordinator server is needed; name `head_ip` and `worker_ips`",
    "provider.external_head_ip": "name the address that ssh reaches as `head_ip`",
    "auth.ssh_proxy_use_node_id": "machines are reached by their addresses; write a `ssh_proxy_command` with %h",
    "cluster_synced_files": "files are copied from here to all nodes; list them in `file_mounts`",
    "file_mounts_sync_continuously": "files are copied by `windlass cluster up` and `sync`, not continuously",
    "docker.disable_automatic_runtime_detection": "containers have all GPUs where nvidia-smi finds some; remove it",
    "no_restart": "it is an option of `ray up`, not a setting; remove it",
}
"""Keys that cannot be honoured, and what to do; values that say nothing (false, empty) are accepted."""

_NOTED: Mapping[str, str] = {
    "metadata": "`metadata` is not read, by Ray neither",
    "autoscaling_mode": "`autoscaling_mode` does not exist any more in Ray; `upscaling_speed` is its successor",
    "worker_default_node_type": "`worker_default_node_type` does not exist any more in Ray",
    "target_utilization_fraction": "`target_utilization_fraction` does not exist any more in Ray",
    "docker.container_name": "`container_name` is not used: each node's container has a name of its own",
    "docker.disable_shm_size_detection": "`disable_shm_size_detection` has no effect: containers have the machine's /dev/shm",
    "auth.ssh_public_key": "`ssh_public_key` is not needed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImport:
    """A file read as ours.

    Attributes:
        notes: what is done otherwise, without harm.
    """

    config: ClusterConfig
    notes: tuple[str, ...]

    def to_yaml(self) -> str:
        """Return our file."""
        return to_yaml(self.config)


def is_ray_file(root: Node) -> bool:
    """Return whether a document looks like Ray's file rather than ours."""
    if not isinstance(root, MappingNode) or root.find("place") is not None:
        return False
    return any(root.find(key) for key in ("provider", "cluster_name", "available_node_types", "head_node_type"))


def read_ray_file(text: str, *, source: str) -> ClusterImport:
    """Read Ray's YAML.

    Raises:
        SpecError: contains every key that is unknown, invalid, or cannot be honoured.
    """
    if len(text) > MAX_TEXT:
        raise SpecError([too_large(SourcePlace(source), MAX_TEXT)])
    node, problems = compose(text, source=source, merges=True)
    if node is None and problems:
        raise_any(problems)
    if not isinstance(node, MappingNode):
        found = "nothing" if node is None else kind_of(node)
        message = f"the file must contain a mapping, not {found}"
        problems.append(Problem(message, "invalid-value", SourcePlace(source), "write `key: value` lines"))
        raise SpecError(problems)
    root = _without_nulls(node)
    raise_any([*problems, *_refused(root)])
    decoder = DocumentDecoder(RayFile)
    file = decoder.decode(root)
    raise_any(decoder.problems)
    assert isinstance(file, RayFile)
    reading = RayReading(file, decoder.origins, source)
    data = reading.data()
    raise_any(reading.problems)
    notes = [text for path, text in _NOTED.items() if _says_something(_find(root, path))]
    return ClusterImport(config=_ours(data, reading), notes=(*notes, *reading.notes))


def _ours(data: Mapping[str, Any], reading: RayReading) -> ClusterConfig:
    """Return our settings; what they refuse is an error at the key of Ray's file that it comes from."""
    decoder = DocumentDecoder(ClusterConfig)
    try:
        config = decoder.decode(node_of_data(data, reading.source))
    except ValueError as error:  # nested too deep
        raise SpecError([Problem(str(error), "yaml-limits", SourcePlace(reading.source), "flatten it")]) from error
    paths: dict[SourcePlace | None, str] = {place: path for path, place in decoder.origins.items() if path}
    raise_any([replace(problem, place=reading.place_of(paths.get(problem.place, ""))) for problem in decoder.problems])
    assert isinstance(config, ClusterConfig)
    return config


def _without_nulls(node: MappingNode) -> MappingNode:
    """Return the document without keys that are null, which Ray reads as unset; clouds' requests are kept as they are."""
    kept = []
    for entry in node.entries:
        inner = entry.node
        if isinstance(inner, ScalarNode) and inner.value is None:
            continue
        if isinstance(inner, MappingNode) and entry.key not in {"node_config", "head_node", "worker_nodes", "metadata"}:
            inner = _without_nulls(inner)
        kept.append(type(entry)(entry.key, entry.place, inner))
    return MappingNode(tuple(kept), node.place)


def _find(root: MappingNode, path: str) -> Node | None:
    node: Node | None = root
    for key in path.split("."):
        entry = node.find(key) if isinstance(node, MappingNode) else None
        node = None if entry is None else entry.node
    return node


def _says_something(node: Node | None) -> bool:
    """Return whether a value is more than empty, zero or false."""
    if isinstance(node, MappingNode):
        return bool(node.entries)
    if isinstance(node, SequenceNode):
        return bool(node.items)
    return node is not None and bool(node.value)


def _refused(root: MappingNode) -> Iterator[Problem]:
    kind = _find(root, "provider.type")
    if isinstance(kind, ScalarNode) and kind.value not in _PROVIDERS:
        message = f"provider.type: `{kind.text}` is not supported"
        yield Problem(message, "unsupported-setting", kind.place, f"use one of: {', '.join(_PROVIDERS)}")
        return
    for path, reason in _REFUSED.items():
        node = _find(root, path)
        if node is not None and _says_something(node):
            yield Problem(f"`{path}` cannot be honoured", "unsupported-setting", node.place, reason)
