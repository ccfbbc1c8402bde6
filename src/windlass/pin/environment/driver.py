"""Check that the locked PyTorch runs with a partition's GPU driver, before anything is queued.

Source: NVIDIA, "CUDA Compatibility": within a major version, a newer toolkit runs on an older driver; a newer major
version does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.pin.environment.locked import LockedPackage, wants_architecture
from windlass.pin.environment.project import normalize
from windlass.sites.profile import Override, Partition

__all__ = ["DriverFinding", "check_driver", "look_at_driver"]

_LOCAL_CUDA = re.compile(r"\+cu(\d{2,3})\b")
_INDEX_CUDA = re.compile(r"(?:^|/)cu(\d{2,3})(?:/|$)")
_RUNTIMES = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?|cuda-toolkit")
# PyTorch's wheel indexes by the CUDA version of their builds, newest first.
_TAGS = ("130", "129", "128", "126", "124", "121", "118")
_Version = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFinding:
    """Locked package whose CUDA version is newer than the driver's.

    Attributes:
        level: `error` for a newer major version, which cannot run; `warning` for a newer minor one, which should.
        override: lines for the site's profile that replace the package.
    """

    level: Literal["error", "warning"]
    message: str
    override: str


def look_at_driver(
    packages: Iterable[LockedPackage],
    overrides: Iterable[Override],
    partition: Partition,
    *,
    partition_name: str,
    arch: str,
    today: str = "",
) -> DriverFinding | None:
    """Compare the locked torch with the partition's `cuda`.

    Return None if they are compatible, or if either is unknown. Pure.

    Args:
        overrides: the site's; one that replaces torch is checked instead of the lock file.
        today: date for the proposed override, YYYY-MM-DD.
    """
    driver = _parse(partition.cuda)
    found = [each for each in packages if each.name == "torch" and wants_architecture(each.marker, arch)]
    needs = _cuda_of_overrides(overrides)
    if needs is None:
        versions = [version for each in found if (version := _cuda_of(each, packages, arch)) is not None]
        needs = min(versions) if found and len(versions) == len(found) else None
    if driver is None or not found or needs is None or needs <= driver:
        return None
    torch = found[0].version.partition("+")[0]
    running = f"the driver {partition.driver}" if partition.driver else "the driver"
    return DriverFinding(
        level="error" if needs[0] > driver[0] else "warning",
        message=(
            f"torch {found[0].version} needs CUDA {needs[0]}.{needs[1]}, but {running} of partition "
            f"`{partition_name}` supports at most CUDA {partition.cuda}"
        ),
        override=_proposal(torch, driver, partition, today),
    )


def check_driver(finding: DriverFinding | None, site: str) -> None:
    """Raise if the locked wheel cannot run; the hint has the override to add to the profile."""
    if finding is not None and finding.level == "error":
        raise PreconditionError(
            finding.message,
            hint=f"add to the profile of site `{site}`:\n{finding.override}",
            code="driver-too-old",
        )


def _proposal(torch: str, driver: _Version, partition: Partition, today: str) -> str:
    tag = next((each for each in _TAGS if _tag_version(each) <= driver), _TAGS[-1])
    lines = [
        "env:",
        "  overrides:",
        f"  - package: torch=={torch}",
        f"    index: cu{tag}",
        f"    why: driver {partition.driver or '?'} runs CUDA {partition.cuda}",
    ]
    return "\n".join([*lines, *([f'    seen: "{today}"'] if today else [])])


def _cuda_of_overrides(overrides: Iterable[Override]) -> _Version | None:
    """Return the CUDA version of the torch that an override installs; (0, 0) if unknown."""
    for each in overrides:
        if normalize(each.package.partition("==")[0].strip()) == "torch":
            told = _LOCAL_CUDA.search(each.package) or _INDEX_CUDA.search(each.index)
            return _tag_version(told.group(1)) if told else (0, 0)
    return None


def _cuda_of(torch: LockedPackage, packages: Iterable[LockedPackage], arch: str) -> _Version | None:
    """Return the CUDA version of a locked torch, from its local version or else from its CUDA runtime dependency."""
    told = _LOCAL_CUDA.search(torch.version)
    if told is not None:
        return _tag_version(told.group(1))
    if "+" in torch.version:  # +cpu, +rocm6.4
        return None
    wanted = {name for name, marker in torch.requires if wants_architecture(marker, arch)}
    versions = [
        _parse(each.version)
        for each in packages
        if _RUNTIMES.fullmatch(each.name)
        and wants_architecture(each.marker, arch)
        and (not torch.requires or each.name in wanted)
    ]
    return min((version for version in versions if version is not None), default=None)


def _tag_version(tag: str) -> _Version:
    return int(tag[:-1]), int(tag[-1])


def _parse(version: str) -> _Version | None:
    told = re.match(r"(\d+)(?:\.(\d+))?", version)
    return (int(told.group(1)), int(told.group(2) or 0)) if told else None
