"""Packages that an image contains, listed in a container: what is installed, not what was requested."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from windlass.core.errors import WindlassError
from windlass.core.files import write_atomic
from windlass.core.names import new_token
from windlass.core.process import run
from windlass.pin.image.engine import ImageEngine

__all__ = ["SBOM_SUFFIX", "list_packages", "write_sbom"]

SBOM_SUFFIX = ".spdx.json"
_TIMEOUT_S = 180.0
_SBOM_TIMEOUT_S = 1800.0
_LINE = re.compile(r"(?:deb:|apk:|rpm:)?[^\s=]+==?\S+\Z|(?:apk|rpm):\S+\Z")
_SCRIPT = r"""
if command -v dpkg-query >/dev/null 2>&1; then dpkg-query -W -f 'deb:${Package}=${Version}\n'
elif command -v rpm >/dev/null 2>&1; then rpm -qa --qf 'rpm:%{NAME}=%{VERSION}-%{RELEASE}\n'
elif command -v apk >/dev/null 2>&1; then apk info -v 2>/dev/null | sed 's/^/apk:/'; fi
for python in python python3; do
  command -v $python >/dev/null 2>&1 || continue
  $python -c 'import importlib.metadata as m
for d in m.distributions():
    if d.metadata["Name"]: print(d.metadata["Name"].lower().replace("_", "-") + "==" + d.version)
import platform; print("python==" + platform.python_version())' && break
done
:
"""


def list_packages(engine: ImageEngine, image: str) -> tuple[str, ...]:
    """Return the sorted Python packages (`name==version`) and system packages (`deb:name=version`). Blocks for seconds.

    Empty for an image without a shell, and for buildah, which runs no container here.
    """
    if engine.kind == "buildah":
        return ()
    name = f"windlass-look-{new_token()[:12]}"
    arguments = [
        "run",
        "--rm",
        "--name",
        name,
        "--network=none",
        "--label=windlass.look=packages",
        "--entrypoint=/bin/sh",
    ]
    try:
        done = engine.call(*arguments, image, "-c", _SCRIPT, timeout_s=_TIMEOUT_S)
    except WindlassError:
        engine.call("rm", "--force", name)
        return ()
    if done.code != 0:
        return ()
    return tuple(sorted({line.strip() for line in done.stdout.splitlines() if _LINE.match(line.strip())}))


def write_sbom(engine: ImageEngine, image: str, path: Path) -> Path | None:
    """Write the image's bill of materials (SPDX, JSON) if syft or docker's `sbom` is installed.

    Otherwise return None.
    """
    if shutil.which("syft") is not None:
        argv = ["syft", "scan", f"{engine.kind}:{image}", "-o", "spdx-json", "-q"]
    elif engine.kind == "docker" and engine.call("sbom", "--version").code == 0:
        argv = [engine.program, "sbom", "--format", "spdx-json", image]
    else:
        return None
    try:
        done = run(argv, timeout_s=_SBOM_TIMEOUT_S)
    except WindlassError:
        return None
    if done.code != 0 or not done.stdout.lstrip().startswith("{"):
        return None
    write_atomic(path, done.stdout.encode())
    return path
