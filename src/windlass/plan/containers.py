"""The command line that runs a command in a container image, by the runtime that a site has; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath

from windlass.core.errors import PreconditionError
from windlass.plan.refusal import Refusals
from windlass.plan.site import Site
from windlass.sites.profile import Containers
from windlass.spec import Experiment

__all__ = ["check_containers", "container_argv"]

_OUTSIDE = ("ray", "mpi", "srun")
"""Launchers that are programs of this machine around the command, and start others on their own."""


def check_containers(experiment: Experiment, site: Site, refusals: Refusals) -> None:
    """Refuse what containers of this machine cannot do: no image, launchers that must start things outside."""
    image = experiment.env.image
    if not image:
        hint = f"name one: --on {site.name} env.image=python:3.12, or env.image=Dockerfile; without one, --on local"
        refusals.add("env.image", f"`{site.name}` runs containers, and the experiment names no image", "no-image", hint)
    for name, task in experiment.tasks.items():
        if task.cluster in _OUTSIDE:
            message = f"task `{name}` has `cluster: {task.cluster}`, which cannot start in the image `{image}`"
            hint = "run it with --on local, or start the cluster inside your own command"
            refusals.add(f"tasks.{name}.cluster", message, "image-launcher", hint)


def container_argv(
    containers: Containers,
    image: str,
    argv: Sequence[str],
    *,
    site: str,
    cwd: PurePath,
    folders: Iterable[PurePath] = (),
    variables: Iterable[str] = (),
    uses_gpus: bool = False,
    has_own_code: bool = False,
) -> tuple[str, ...]:
    """`argv` wrapped so that it runs in `image`.

    Args:
        image: a tag (`nvcr.io/nvidia/pytorch:25.10-py3`), an address with a scheme, or the absolute path of an image file.
        folders: shown inside under their own path, besides the site's own `binds`; the working folder is always.
        variables: names of variables that must reach the inside; apptainer passes all of them anyway.
        uses_gpus: the drivers' libraries must be there.
        has_own_code: `cwd` is a folder of the image, over which nothing may be shown.

    Raises:
        PreconditionError: the site runs no containers, or not from a Dockerfile.
    Source: Apptainer user guide, "apptainer exec"; enroot, doc/cmd/start.md and doc/image-format.md.
    """
    if containers.kind == "none":
        raise PreconditionError(
            f"`env.image` is `{image}`, and site `{site}` runs no containers",
            hint="use `env.uv`, or let `containers.kind` of its profile name apptainer or enroot",
            code="no-containers",
        )
    if PurePath(image).name.startswith("Dockerfile"):
        raise PreconditionError(
            f"`env.image` is `{image}`, and {containers.kind} builds nothing from a Dockerfile",
            hint="build the image elsewhere, push it, and name its tag",
            code="image-not-built",
        )
    shown = _shown(() if has_own_code else (cwd,), folders)
    if containers.kind == "apptainer":
        return (*_apptainer(containers, image, cwd, shown, uses_gpus), *argv)
    return (*_enroot(containers, image, cwd, shown, variables, uses_gpus), *argv)


def _shown(own: Iterable[PurePath], folders: Iterable[PurePath]) -> list[str]:
    """Folders without repeats, and without those that lie in another one of them."""
    found = sorted({str(folder) for folder in (*own, *folders)})
    kept: list[str] = []
    for folder in found:
        if not any(PurePath(folder).is_relative_to(other) for other in kept):
            kept.append(folder)
    return kept


def _apptainer(
    containers: Containers, image: str, cwd: PurePath, shown: Sequence[str], uses_gpus: bool
) -> tuple[str, ...]:
    needs_nv = uses_gpus and not {"--nv", "--rocm", "--nvccli"} & set(containers.options)
    binds = [each for folder in (*containers.binds, *shown) for each in ("--bind", folder)]
    return (
        containers.program or "apptainer",
        "exec",
        *(["--nv"] if needs_nv else []),
        *containers.options,
        *binds,
        "--pwd",
        str(cwd),
        image if "://" in image or image.startswith("/") else f"docker://{image}",
    )


def _enroot(
    containers: Containers, image: str, cwd: PurePath, shown: Sequence[str], variables: Iterable[str], uses_gpus: bool
) -> tuple[str, ...]:
    if not image.startswith("/"):
        raise PreconditionError(
            f"`env.image` is `{image}`, and enroot starts image files only",
            hint=f"`enroot import -o image.sqsh docker://{image.removeprefix('docker://')}` there, then name the file",
            code="image-not-imported",
        )
    mounts = [each for folder in (*containers.binds, *shown) for each in ("--mount", _both_sides(folder))]
    words = [*sorted(variables), *(["NVIDIA_VISIBLE_DEVICES=all"] if uses_gpus else [])]
    inside = [each for word in words for each in ("--env", word)]
    # enroot has no option for the working folder, so a shell inside goes there first.
    enter = ("/bin/sh", "-c", 'cd "$0" && exec "$@"', str(cwd))
    return (containers.program or "enroot", "start", *containers.options, *mounts, *inside, image, *enter)


def _both_sides(folder: str) -> str:
    """A line of fstab with colons; the place inside is made where the image has none."""
    return folder if ":" in folder else f"{folder}:{folder}:none:x-create=dir,rbind"
