"""Conversion of a mason launch's options for another site: environment, shared memory, priority, time.

Options that only Beaker supports get a note; at a Beaker site they are kept in the task's `compat` extension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from windlass.compat.mason.options import MasonOptions
from windlass.compat.mason.reading import MasonLaunch
from windlass.compat.mason.to_experiment.job_env import Surroundings
from windlass.compat.to_experiment.constraints import priority_at, size_bytes_of
from windlass.compat.to_experiment.destination import Destination
from windlass.compat.to_experiment.diagnostics import ConversionDiagnostics
from windlass.spec import Context, Env, Image

__all__ = [
    "DEFAULTS",
    "asked_of_beaker",
    "clusters_note",
    "context_there",
    "env_there",
    "note_on_place",
    "shared_memory_there",
    "time_there",
]

DEFAULTS = MasonOptions(cluster=())
_NS = 1_000_000_000


def shared_memory_there(options: MasonOptions, place: Destination, diagnostics: ConversionDiagnostics) -> int | None:
    """Return the size of /dev/shm in bytes, if the site can set it for each task."""
    text = options.shared_memory
    if place.kind in ("docker", "beaker"):
        return size_bytes_of("--shared_memory", text, diagnostics)
    if text != DEFAULTS.shared_memory:
        diagnostics.note(f"--shared_memory {text}: the nodes of the site set the size of shared memory")
    return None


def env_there(
    options: MasonOptions, chosen: Env, place: Destination, around: Surroundings, diagnostics: ConversionDiagnostics
) -> Env:
    """Return the tasks' environment: the chosen one, or mason's image if the site can run it."""
    if place.kind == "docker" and not chosen.image:
        whose: Literal["", "image"] = "image" if options.pure_docker_mode else ""
        network: Literal["private", "host"] = "private" if options.no_host_networking else "host"
        chosen = Env(image=Image(name=options.image, code=whose, network=network))
        diagnostics.note(
            f"--image {options.image} is taken from this machine's Docker engine, or pulled from its registry"
        )
    elif place.kind == "beaker" and not chosen.image:
        chosen = Env(image=Image(name=f"beaker:{options.image}"))
    elif not chosen.image:
        other = "--env-uv DIR, --env-python PATH or --env-image NAME choose another"
        diagnostics.note(f"--image {options.image} is a Beaker image: tasks run in {_environment(chosen)} ({other})")
    return Env(
        image=chosen.image,
        uv=chosen.uv,
        python=chosen.python,
        groups=chosen.groups,
        extras=chosen.extras,
        vars={**around.variables, **chosen.vars},
        secrets=around.secrets,
    )


def _environment(env: Env) -> str:
    if env.uv:
        return f"the environment of {env.uv}"
    return env.python or "the site's own environment"


def context_there(options: MasonOptions, place: Destination, diagnostics: ConversionDiagnostics) -> Context:
    """Return the priority, whether the job is preemptible and, at Beaker, the budget."""
    return Context(
        priority=priority_at(options.priority, place, diagnostics),
        preemptible=options.preemptible or options.min_runtime_ns == 0,
        account=(options.budget or "") if place.kind == "beaker" else "",
    )


def time_there(options: MasonOptions, diagnostics: ConversionDiagnostics) -> float | None:
    """Return the time limit for the whole run, in seconds."""
    if options.timeout_ns is None:
        return None
    if options.max_retries:
        diagnostics.note("--timeout limits all attempts together; on Beaker it limits each attempt separately")
    return max(1.0, options.timeout_ns / _NS)


def note_on_place(
    options: MasonOptions, place: Destination, partitions: tuple[str, ...], diagnostics: ConversionDiagnostics
) -> None:
    """Add a note for each option that only Beaker supports."""
    if place.kind == "beaker":
        diagnostics.note(*clusters_note(options, place))
        return
    if not partitions:
        diagnostics.note(f"--cluster {' '.join(options.cluster)}: a Beaker option; `{place.name}` chooses the nodes")
    given: Mapping[str, object] = {
        "--budget": options.budget,
        "--workspace": options.workspace,
        "--hostname": " ".join(options.hostname),
        "--extra_weka_buckets": " ".join(options.extra_weka_buckets),
    }
    diagnostics.note(
        *(f"{flag} {value} applies only to Beaker and is ignored" for flag, value in given.items() if value)
    )
    if options.min_runtime_ns:
        diagnostics.note("--min_runtime applies only to Beaker: the site controls protection from preemption")
    if options.mount_docker_socket and place.kind != "local":
        diagnostics.note("--mount_docker_socket: at this site tasks have no access to the host's Docker")
    if options.no_host_networking and place.kind != "docker":
        diagnostics.note("--no-host-networking: at this site tasks use the host's network")


def asked_of_beaker(launch: MasonLaunch, place: Destination, partitions: tuple[str, ...]) -> dict[str, Any]:
    """Return the keys of a Beaker task that have no equivalent in an experiment; empty at other sites."""
    if place.kind != "beaker":
        return {}
    options, asked = launch.options, dict[str, Any]()
    if options.hostname:  # Beaker chooses any of them; `hosts` of a task requires all of them
        asked["constraints"] = {"hostname": list(options.hostname)}
    elif not partitions:
        asked["constraints"] = {"cluster": list(options.cluster)}
    context: dict[str, Any] = {"priority": "immediate"} if options.priority == "immediate" else {}
    if options.min_runtime_ns:
        context["minRuntime"] = options.min_runtime_ns
    if context:
        asked["context"] = context
    mounts = [each for each in launch.spec["tasks"][0]["datasets"] if each["mountPath"] not in place.present]
    if mounts:
        asked["datasets"] = mounts
    return asked


def clusters_note(options: MasonOptions, place: Destination) -> list[str]:
    """Return notes on options that the profile of a Beaker site overrides."""
    if place.kind != "beaker" or not options.workspace:
        return []
    return [f"--workspace {options.workspace}: the run uses the workspace in the profile of `{place.name}`"]
