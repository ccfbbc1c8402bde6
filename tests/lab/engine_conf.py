"""Configuration of a lab's registry, and of podman and buildah, which have their storage in the lab."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_engine_conf"]

REGISTRY = """\
version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {folder}/registry}}, delete: {{enabled: true}}}}
http: {{addr: "{address}"}}
"""

# runc: crun wants pure cgroups of version 2. The limits: what a process without CAP_SYS_RESOURCE may still set.
CONTAINERS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "cni"
"""

STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/podman/data"
runroot = "{folder}/podman/run"
"""

REGISTRIES = """\
unqualified-search-registries = []
[[registry]]
location = "{address}"
insecure = true
"""


def write_engine_conf(folder: Path, address: str) -> None:
    """Write `<folder>/conf/*` for a registry at `address`."""
    texts = {
        "registry.yml": REGISTRY,
        "containers.conf": CONTAINERS,
        "storage.conf": STORAGE,
        "registries.conf": REGISTRIES,
        "config.json": "{{}}",
        "daemon.json": "{{}}",
    }
    for name, text in texts.items():
        (folder / "conf" / name).write_text(text.format(folder=folder, address=address))
