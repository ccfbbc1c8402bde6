"""Ray's cluster file as data: every key of its schema, and of the form of 2019.

Source: ray-schema.json of Ray 2.60; autoscaler/aws/example-full.yaml of Ray 0.7 (2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from windlass.config.annotations import Free, JsonValue, Range
from windlass.core.dataclass import dataclass

__all__ = [
    "DEFAULT_HEAD",
    "DEFAULT_MOST",
    "DEFAULT_WORKER",
    "RayAuth",
    "RayDocker",
    "RayFile",
    "RayNodeType",
    "RayOldNode",
    "RayProvider",
    "RayTypeDocker",
]

DEFAULT_MOST = 2
DEFAULT_HEAD: Mapping[str, object] = {
    "InstanceType": "m5.large",
    "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 256}}],
}
DEFAULT_WORKER: Mapping[str, object] = {"InstanceType": "m5.large", "InstanceMarketOptions": {"MarketType": "spot"}}
"""Machines that Ray makes if a file names none (autoscaler/aws/defaults.yaml of Ray 2.60)."""

_Any = Annotated[object, Free()]
_Count = Annotated[int, Range(min=0, max=100_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RayProvider:
    """Section `provider`."""

    type: str
    region: str = ""
    availability_zone: str = ""
    head_ip: str = ""
    worker_ips: tuple[str, ...] = ()
    use_internal_ips: bool = False
    cache_stopped_nodes: bool = True
    key_pair: Mapping[str, JsonValue] = field(default_factory=dict)
    security_group: Mapping[str, JsonValue] = field(default_factory=dict)
    subnet_id: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    module: _Any = None
    namespace: _Any = None
    location: _Any = None
    resource_group: _Any = None
    subscription_id: _Any = None
    msi_identity_id: _Any = None
    msi_identity_principal_id: _Any = None
    autoscaler_service_account: _Any = None
    autoscaler_role: _Any = None
    autoscaler_role_binding: _Any = None
    project_id: _Any = None
    gcp_credentials: _Any = None
    cloudwatch: _Any = None
    disable_node_updaters: _Any = None
    coordinator_address: _Any = None
    external_head_ip: _Any = None
    use_external_head_ip: _Any = None
    aws_credentials: _Any = None
    vsphere_config: _Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RayAuth:
    """Section `auth`."""

    ssh_user: str = ""
    ssh_private_key: str = ""
    ssh_public_key: str = ""
    ssh_proxy_command: str = ""
    ssh_proxy_use_node_id: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RayDocker:
    """Section `docker`."""

    image: str = ""
    head_image: str = ""
    worker_image: str = ""
    container_name: str | None = None
    pull_before_run: bool = True
    pull: bool = True
    run_options: tuple[str, ...] = ()
    head_run_options: tuple[str, ...] = ()
    worker_run_options: tuple[str, ...] = ()
    disable_automatic_runtime_detection: bool = False
    disable_shm_size_detection: bool = False
    use_podman: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RayTypeDocker:
    """Section `docker` of a node type."""

    worker_image: str = ""
    worker_run_options: tuple[str, ...] = ()
    pull_before_run: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNodeType:
    """Entry of `available_node_types`."""

    node_config: Mapping[str, JsonValue] = field(default_factory=dict)
    min_workers: _Count = 0
    max_workers: _Count | None = None
    idle_timeout_s: Annotated[float | None, Range(min=0)] = None
    priority: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    initialization_commands: tuple[str, ...] = ()
    worker_setup_commands: tuple[str, ...] | None = None
    docker: RayTypeDocker = RayTypeDocker()


RayOldNode = Mapping[str, JsonValue]
"""Fields of the cloud's request, as `head_node` and `worker_nodes` of 2019 have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayFile:
    """A whole file."""

    cluster_name: str
    provider: RayProvider
    max_workers: _Count | None = None
    min_workers: _Count | None = None
    initial_workers: _Count | None = None
    upscaling_speed: Annotated[float, Range(above=0)] = 1.0
    idle_timeout_minutes: Annotated[float, Range(min=0)] = 5.0
    auth: RayAuth = RayAuth()
    docker: RayDocker = RayDocker()
    available_node_types: Mapping[str, RayNodeType] = field(default_factory=dict)
    head_node_type: str = ""
    head_node: Mapping[str, JsonValue] = field(default_factory=dict)
    worker_nodes: Mapping[str, JsonValue] = field(default_factory=dict)
    file_mounts: Mapping[str, str] = field(default_factory=dict)
    cluster_synced_files: tuple[str, ...] = ()
    file_mounts_sync_continuously: bool = False
    rsync_exclude: tuple[str, ...] = ()
    rsync_filter: tuple[str, ...] = ()
    initialization_commands: tuple[str, ...] = ()
    setup_commands: tuple[str, ...] = ()
    head_setup_commands: tuple[str, ...] = ()
    worker_setup_commands: tuple[str, ...] = ()
    head_start_ray_commands: tuple[str, ...] = ()
    worker_start_ray_commands: tuple[str, ...] = ()
    metadata: _Any = None
    no_restart: _Any = None
    worker_default_node_type: _Any = None
    autoscaling_mode: _Any = None
    target_utilization_fraction: _Any = None
