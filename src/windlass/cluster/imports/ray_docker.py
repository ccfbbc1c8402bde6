"""Section `docker` of Ray's cluster file as our `image`, `image_options` and `image_engine`.

Source: autoscaler/_private/command_runner.py and docker.py of Ray 2.60.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from windlass.cluster.image_options import DEFAULTS
from windlass.cluster.imports.ray_file import RayDocker, RayFile, RayTypeDocker

__all__ = ["RayContainers"]

_ALWAYS = "--pull=always"


class RayContainers:
    """The section, and those of node types, which replace its keys.

    Args:
        notes: receives what is done otherwise.
    """

    def __init__(self, file: RayFile, notes: list[str]) -> None:
        self._docker: RayDocker = file.docker
        self._notes = notes
        self._has_images = self.has_image(None) or any(map(self.has_image, file.available_node_types.values()))

    def has_image(self, kind: Any) -> bool:
        """Return whether the section, or that of a node type, names an image."""
        if kind is not None:
            return bool(kind.docker.worker_image)
        return bool(self._docker.image or self._docker.head_image or self._docker.worker_image)

    def cluster(self) -> dict[str, Any]:
        """Return our settings of the cluster."""
        found: dict[str, Any] = {"image": self._docker.image, "image_options": self._options(self._docker.run_options)}
        if self._has_images and self._docker.use_podman:
            found["image_engine"] = "podman"
        if self._docker.image and self._docker.pull_before_run and self._docker.pull:
            found["image_options"] = [*found["image_options"], _ALWAYS]
        return found

    def head(self) -> dict[str, Any]:
        """Return our settings of the head."""
        return self._group(self._docker.head_image, self._docker.head_run_options, None)

    def workers(self, kind: RayTypeDocker | None = None) -> dict[str, Any]:
        """Return our settings of a group.

        Args:
            kind: section of its node type.
        """
        image, options = self._docker.worker_image, self._docker.worker_run_options
        if kind is not None:
            image, options = kind.worker_image or image, kind.worker_run_options or options
        return self._group(image, options, kind)

    def _group(self, image: str, options: Sequence[str], kind: RayTypeDocker | None) -> dict[str, Any]:
        found = self._options(options)
        is_pulled = self._docker.pull_before_run and self._docker.pull
        if kind is not None and not kind.pull_before_run and is_pulled and (image or self._docker.image):
            found.append("--pull=missing")
        elif image and not self._docker.image and is_pulled:
            found.append(_ALWAYS)
        return {"image": image, "image_options": found}

    def _options(self, options: Sequence[str]) -> list[str]:
        """Return options without those that state what every container of ours has."""
        found = []
        for text in options:
            if "=".join(_words(text)) in DEFAULTS:
                continue
            if _words(text)[:1] and _words(text)[0].partition("=")[0] == "--shm-size":
                note = "`--shm-size` of `docker` is not used: containers have the machine's /dev/shm"
                self._notes += [note] if note not in self._notes else []
                continue
            found.append(text)
        return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []  # refused as an option of ours
