"""Arguments of `docker create` and `podman create` for a replica's container; pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from windlass.core.dataclass import dataclass
from windlass.supervise.container.engine import RUN_LABEL, TOKEN_LABEL
from windlass.supervise.job import JobDocument

__all__ = [
    "SECRETS_INSIDE",
    "ContainerUser",
    "container_name",
    "create_arguments",
    "mount_words",
    "network_name",
    "replica_name",
    "secrets_script",
    "user_words",
]

SECRETS_INSIDE = "/run/windlass/secrets"
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")
_HOME = "/tmp"  # noqa: S108 - every image has it, and any user may write there


@dataclass(frozen=True)
class ContainerUser:
    """User that runs the processes on this machine; `name` may be empty."""

    uid: int
    gid: int
    groups: Sequence[int] = ()
    name: str = ""
    memory_bytes: int = 0


def replica_name(rank: int) -> str:
    """Return a replica's host name in the private network of a job."""
    return f"replica-{rank}"


def container_name(job: JobDocument, rank: int, attempt: int) -> str:
    """Return a container's name, as `docker ps` shows it."""
    return _UNFIT.sub("-", f"windlass-{job.run}-{job.task}-{attempt}-{rank}")


def network_name(job: JobDocument) -> str:
    """Return the name of a job's private network."""
    return _UNFIT.sub("-", f"windlass-{job.run}-{job.task}-{job.job}")


def create_arguments(
    job: JobDocument,
    rank: int,
    attempt: int,
    *,
    argv: Sequence[str],
    env: Mapping[str, str],
    user: ContainerUser,
    folders: Iterable[str] = (),
    secrets: str = "",
    init: str | None = None,
) -> list[str]:
    """Return the options, image and command for `create`; the image's entry point is not run.

    Args:
        argv: the user's command.
        env: its variables, without secrets: `docker inspect` shows them.
        folders: additional files and folders, mounted read-only.
        secrets: file of shell lines that export the secret variables; empty if there is none.
        init: program for process 1; None means the engine's default.
    Source: docker-create(1), podman-create(1).
    """
    container = job.container
    words = [f"--name={container_name(job, rank, attempt)}", "--init", "--log-driver=none", "--stop-timeout=0"]
    words += [f"--init-path={init}"] if init else []
    words += [f"--label={TOKEN_LABEL}={job.token}.{rank}", f"--label={RUN_LABEL}={job.run}"]
    words += _network(job, rank)
    words += _limits(job, user)
    words += _devices(job, env)
    words += user_words(user)
    mounts = dict.fromkeys((*container.folders, *folders), "readonly")
    mounts.update(dict.fromkeys(container.writable, ""))
    words += [word for path, mode in sorted(mounts.items()) for word in mount_words(path, path, mode)]
    words += mount_words(secrets, SECRETS_INSIDE, "readonly") if secrets else []
    words += [f"--workdir={container.cwd}"] if container.cwd else []
    words += [f"--env={name}={value}" for name, value in sorted(_variables(job, env, user).items())]
    command = ["/bin/sh", "-c", f'. {SECRETS_INSIDE} && exec "$@"', "sh", *argv] if secrets else list(argv)
    return [*words, f"--entrypoint={command[0]}", container.image, *command[1:]]


def secrets_script(values: Mapping[str, str]) -> bytes:
    """Return shell lines that export variables."""
    lines = [f"export {name}='" + value.replace("'", "'\\''") + "'\n" for name, value in sorted(values.items())]
    return os.fsencode("".join(lines))


def _network(job: JobDocument, rank: int) -> list[str]:
    if job.container.network == "host":
        return ["--network=host"]
    name = replica_name(rank)
    return [f"--network={network_name(job)}", f"--network-alias={name}", f"--hostname={name}"]


def _limits(job: JobDocument, user: ContainerUser) -> list[str]:
    memory, cpus = job.shape.memory_bytes, job.shape.cpus
    shared = job.shape.shared_memory_bytes or memory or user.memory_bytes // 2
    words = [f"--memory={memory}b", f"--memory-swap={memory}b"] if memory else []
    words += [f"--cpus={cpus:g}"] if cpus else []
    return words + ([f"--shm-size={shared}b"] if shared else [])


def _devices(job: JobDocument, env: Mapping[str, str]) -> list[str]:
    """Return the options that expose the leased GPUs, which are renumbered from 0 inside.

    Source: NVIDIA Container Toolkit, Docker and CDI.
    """
    ids = [each for each in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    if not job.shape.gpus or not ids:
        return []
    if job.container.engine == "podman":
        return [f"--device=nvidia.com/gpu={each}" for each in ids]
    return [f'--gpus="device={",".join(ids)}"']


def user_words(user: ContainerUser) -> list[str]:
    """Return the options that run as a user, with its groups."""
    groups = [f"--group-add={group}" for group in user.groups if group != user.gid]
    return [f"--user={user.uid}:{user.gid}", *groups]


def _variables(job: JobDocument, env: Mapping[str, str], user: ContainerUser) -> dict[str, str]:
    own = {} if user.uid == 0 else {"HOME": _HOME}
    own.update({"USER": user.name, "LOGNAME": user.name} if user.name else {})
    found = {**own, **env}
    if job.shape.gpus and found.get("CUDA_VISIBLE_DEVICES"):
        found["CUDA_VISIBLE_DEVICES"] = ",".join(str(n) for n in range(len(found["CUDA_VISIBLE_DEVICES"].split(","))))
    return found


def mount_words(source: str, target: str, mode: str) -> list[str]:
    """Return a `--mount` option, whose value is a CSV record."""
    fields = ["type=bind", f"source={source}", f"target={target}", *([mode] if mode else [])]
    quoted = ['"' + each.replace('"', '""') + '"' if set(each) & {",", '"'} else each for each in fields]
    return [f"--mount={','.join(quoted)}"]
