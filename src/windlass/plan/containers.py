"""Command lines that run a command in a container, using the site's container runtime. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath

from windlass.core.errors import PreconditionError
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.site import Site
from windlass.sites.profile import Containers, Profile
from windlass.spec import Experiment

__all__ = ["OUTSIDE", "check_containers", "check_site_containers", "container_argv"]

OUTSIDE = ("ray", "mpi", "srun")
"""Launchers that run on the host and start processes outside the container."""

_NOT_A_FILE = "`env.image` is `{}`, and enroot starts image files only"


def check_containers(experiment: Experiment, site: Site, diagnostics: Diagnostics) -> None:
    """Refuse experiments without an image, and launchers that need processes outside containers."""
    image = experiment.env.image
    if not image:
        hint = f"name one: --on {site.name} env.image=python:3.12, or env.image=Dockerfile; without one, --on local"
        diagnostics.add(
            "env.image", f"`{site.name}` runs containers, but the experiment has no image", "no-image", hint
        )
    _check_launchers(experiment, diagnostics, "run it with --on local, or start the cluster inside your own command")


def check_site_containers(experiment: Experiment, profile: Profile, diagnostics: Diagnostics) -> None:
    """Refuse image settings that the site's container runtime does not support."""
    image, kind = experiment.env.image, profile.containers.kind
    if not image or kind == "none":
        return  # without a runtime, the image itself is refused
    _check_launchers(experiment, diagnostics, "use `env.uv`, or start the cluster inside your own command")
    if kind == "enroot" and not image.name.startswith("/"):
        diagnostics.add("env.image", _NOT_A_FILE.format(image), "image-unsupported", _import_hint(str(image)))
    reasons = {}
    if image.network != "host":
        reasons["network"] = f"{kind} uses the node's network"
    if image.name and image.has_own_code:
        reasons["code"] = "the code folder of a named image is not known"
    for key, reason in reasons.items():
        path = f"env.image.{key}"
        message = f"{path}={getattr(image, key)} is not supported on `{profile.name}`: {reason}"
        diagnostics.add(path, message, "unsupported-setting", f"remove it: ~{path}")


def _import_hint(image: str) -> str:
    name = image.removeprefix("docker://")
    return f"`enroot import -o image.sqsh docker://{name}` there, then use the file's absolute path"


def _check_launchers(experiment: Experiment, diagnostics: Diagnostics, hint: str) -> None:
    for name, task in experiment.tasks.items():
        if task.cluster in OUTSIDE:
            image = experiment.env.image
            message = (
                f"task `{name}` has `cluster: {task.cluster}`, which cannot start processes in the image `{image}`"
            )
            diagnostics.add(f"tasks.{name}.cluster", message, "unsupported-setting", hint)


def container_argv(
    containers: Containers,
    image: str,
    argv: Sequence[str],
    *,
    site: str,
    cwd: PurePath,
    folders: Iterable[PurePath] = (),
    files: Iterable[PurePath] = (),
    variables: Iterable[str] = (),
    uses_gpus: bool = False,
    has_own_code: bool = False,
) -> tuple[str, ...]:
    """Return `argv` wrapped to run in `image`.

    Args:
        image: a tag (`nvcr.io/nvidia/pytorch:25.10-py3`), an address with a scheme, or the absolute path of an image file.
        folders: mounted under their own path, besides the site's `binds` and the working folder.
        files: mounted likewise.
        variables: names of variables to pass into the container; apptainer passes all of them anyway.
        uses_gpus: make the driver libraries available.
        has_own_code: `cwd` is a folder of the image, over which nothing may be mounted.

    Raises:
        PreconditionError: the site has no container runtime, or the runtime cannot build a Dockerfile.
    Source: Apptainer user guide, "apptainer exec"; enroot, doc/cmd/start.md and doc/image-format.md.
    """
    if containers.kind == "none":
        raise PreconditionError(
            f"`env.image` is `{image}`, but site `{site}` does not run containers",
            hint="use `env.uv`, or set `containers.kind` in its profile to apptainer or enroot",
            code="unsupported-setting",
        )
    if PurePath(image).name.startswith("Dockerfile"):
        raise PreconditionError(
            f"`env.image` is `{image}`, but {containers.kind} cannot build from a Dockerfile",
            hint="build the image on another machine, push it, and use its tag",
            code="image-unsupported",
        )
    shown = _shown(() if has_own_code else (cwd,), folders)
    if containers.kind == "apptainer":
        return (*_apptainer(containers, image, cwd, [*shown, *map(str, files)], uses_gpus), *argv)
    return (*_enroot(containers, image, cwd, shown, files, variables, uses_gpus), *argv)


def _shown(own: Iterable[PurePath], folders: Iterable[PurePath]) -> list[str]:
    """Return the folders, omitting duplicates and folders inside others."""
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
    binds = [each for path in (*containers.binds, *shown) for each in ("--bind", path)]
    return (
        *_with_requests("--bind", _REQUESTS),
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
    containers: Containers,
    image: str,
    cwd: PurePath,
    shown: Sequence[str],
    files: Iterable[PurePath],
    variables: Iterable[str],
    uses_gpus: bool,
) -> tuple[str, ...]:
    if not image.startswith("/"):
        raise PreconditionError(_NOT_A_FILE.format(image), hint=_import_hint(image), code="image-unsupported")
    lines = [*map(_both_sides, (*containers.binds, *shown)), *(_both_sides(str(file), "file,bind") for file in files)]
    mounts = [each for line in lines for each in ("--mount", line)]
    words = [*sorted(variables), *(["NVIDIA_VISIBLE_DEVICES=all"] if uses_gpus else [])]
    inside = [each for word in words for each in ("--env", word)]
    # enroot has no option for the working folder, so a shell inside changes to it first.
    enter = ("/bin/sh", "-c", 'cd "$0" && exec "$@"', str(cwd))
    start = (containers.program or "enroot", "start", *containers.options)
    return (*_with_requests("--mount", _both_sides(_REQUESTS)), *start, *mounts, *inside, image, *enter)


def _both_sides(path: str, kind: str = "dir,rbind") -> str:
    """Return a mount as an fstab line with colons; a missing mount point is created in the image."""
    return path if ":" in path and path != _REQUESTS else f"{path}:{path}:none:x-create={kind}"


_REQUESTS = "${WINDLASS_CONTROL%/*}"
"""Shell expression of a node-local folder for requests to save and stop."""


def _with_requests(option: str, value: str) -> tuple[str, ...]:
    """Return the first words of a command line, which add an option whose value only the node knows."""
    script = (
        'command -v "$0" >/dev/null || { echo "there is no $0 on $(uname -n)" >&2; exit 127; }; '
        f'verb=$1; shift; exec "$0" "$verb" {option} "{value}" "$@"'
    )
    return ("/bin/sh", "-c", script)
