"""Conversion of a recipe to Beaker's spec, key by key, as gantry writes it. Pure: no requests, no randomness."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from windlass.compat.gantry.checkout import Checkout
from windlass.compat.gantry.durations import to_nanoseconds
from windlass.compat.gantry.environment import python_variables
from windlass.compat.gantry.mounts import GantryMount, Inputs
from windlass.compat.gantry.resolution import GANTRY_VERSION, ResolvedLaunch
from windlass.compat.gantry.settings import RecipeSettings

__all__ = ["build_spec", "command", "rendezvous_of"]

_FIRST_PORT, _NUM_PORTS, _NUM_IDS = 29_000, 1_000, 1_000


def build_spec(
    recipe: RecipeSettings, inputs: Inputs, checkout: Checkout, resolved: ResolvedLaunch, *, name: str
) -> dict[str, Any]:
    """Return the spec for a run named `name`.

    Raises:
        UsageError: an invalid duration, or Python options that contradict the repository.
    """
    spec: dict[str, Any] = {"version": "v2"}
    spec |= _given(description=recipe.description)
    spec["tasks"] = [_task(recipe, inputs, checkout, resolved, name)]
    spec |= _given(budget=recipe.budget)
    spec["groups"] = list(resolved.groups)
    if recipe.retries:
        spec["retry"] = {"allowedTaskRetries": recipe.retries}
    return spec


def rendezvous_of(name: str) -> tuple[str, str]:
    """Return the id and port for torchrun's rendezvous; gantry chooses both at random."""
    digest = hashlib.sha256(name.encode()).digest()
    number = int.from_bytes(digest[:4], "big")
    port = int.from_bytes(digest[4:8], "big")
    return str(number % _NUM_IDS), str(_FIRST_PORT + port % _NUM_PORTS)


def _task(
    recipe: RecipeSettings, inputs: Inputs, checkout: Checkout, resolved: ResolvedLaunch, name: str
) -> dict[str, Any]:
    constraints = _given(cluster=list(resolved.clusters) or None, hostname=list(recipe.hostnames or ()) or None)
    return {
        "name": recipe.task_name,
        "image": dict(resolved.image),
        "context": _context(recipe),
        "result": {"path": recipe.results},
        **({"constraints": constraints} if constraints else {}),
        "command": list(command()),
        "arguments": list(recipe.args),
        "envVars": _variables(recipe, inputs, checkout, resolved, name),
        **_mounts(inputs, resolved),
        "resources": _given(
            cpuCount=recipe.cpus, gpuCount=recipe.gpus, memory=recipe.memory, sharedMemory=recipe.shared_memory
        ),
        **_gang(recipe),
        **_nanoseconds("timeout", "--task-timeout", recipe.task_timeout),
    }


def _context(recipe: RecipeSettings) -> dict[str, Any]:
    context = _given(priority=recipe.priority)
    context |= _nanoseconds("minRuntime", "--min-runtime", recipe.min_runtime)
    context |= _given(autoResume=recipe.auto_resume)
    if not context.keys() & {"minRuntime", "autoResume"}:  # Beaker rejects the old key beside the new ones
        context |= _given(preemptible=recipe.preemptible)
    return context


def _gang(recipe: RecipeSettings) -> dict[str, Any]:
    """Return the keys that bind replicas into a gang, including those that torchrun implies."""
    replicas, is_led = recipe.num_replicas, recipe.is_led
    failure, preemption = recipe.propagate_failure, recipe.propagate_preemption
    start = recipe.synchronized_start_timeout
    if recipe.torchrun and replicas and is_led:
        failure = True if failure is None else failure
        preemption = True if preemption is None and failure else preemption
        start = "5m" if start is None else start
    networking = recipe.host_networking
    return {
        "hostNetworking": bool(replicas and is_led) if networking is None else networking,
        **_given(replicas=replicas),
        "leaderSelection": is_led,
        **_given(propagateFailure=failure, propagatePreemption=preemption),
        **_nanoseconds("synchronizedStartTimeout", "--synchronized-start-timeout", start),
    }


def _variables(
    recipe: RecipeSettings, inputs: Inputs, checkout: Checkout, resolved: ResolvedLaunch, name: str
) -> list[dict[str, str]]:
    """Return variables in gantry's order; a later variable replaces an earlier one with the same name."""
    variables: dict[str, dict[str, str]] = {}
    own = _own_variables(recipe, checkout, resolved, name)
    given = [*({"name": key, "value": value} for key, value in inputs.variables)]
    given += [{"name": key, "secret": secret} for key, secret in resolved.secret_variables]
    for variable in (*own, *given):
        variables.pop(variable["name"], None)
        variables[variable["name"]] = variable
    return list(variables.values())


def _own_variables(
    recipe: RecipeSettings, checkout: Checkout, resolved: ResolvedLaunch, name: str
) -> Iterator[dict[str, str]]:
    values: list[tuple[str, str | None]] = [
        ("GANTRY_VERSION", f"{GANTRY_VERSION}+windlass"),
        ("GITHUB_REPO", checkout.repo),
        ("GIT_REF", checkout.ref),
        ("GANTRY_TASK_NAME", recipe.task_name),
        ("RESULTS_DIR", recipe.results),
        ("GANTRY_RUNTIME_DIR", recipe.runtime_dir),
        ("GANTRY_EXEC_METHOD", recipe.exec_method),
    ]
    if recipe.torchrun:
        values.append(("GANTRY_USE_TORCHRUN", "1"))
        if recipe.num_replicas and recipe.is_led:
            number, port = rendezvous_of(name)
            values += [("GANTRY_RDZV_ID", number), ("GANTRY_RDZV_PORT", port)]
    values.append(("GIT_BRANCH", checkout.branch))
    values.append(("WINDLASS_GIT_URL", None if checkout.is_on_github else checkout.url))
    yield from _valued(values)
    if resolved.token_secret is not None:
        yield {"name": "GITHUB_TOKEN", "secret": resolved.token_secret}
    yield from _valued([("GANTRY_SKIP_NCCL_SETUP", "1" if recipe.skip_nccl_setup or recipe.skip_tcpxo_setup else None)])
    yield from _valued(python_variables(recipe, checkout))
    yield from _valued(
        [
            ("GANTRY_INSTALL_CMD", recipe.install),
            ("GANTRY_PRE_SETUP_CMD", recipe.pre_setup),
            ("GANTRY_POST_SETUP_CMD", recipe.post_setup),
        ]
    )


def _valued(values: Iterable[tuple[str, str | None]]) -> Iterator[dict[str, str]]:
    return ({"name": name, "value": value} for name, value in values if value is not None)


def _mounts(inputs: Inputs, resolved: ResolvedLaunch) -> dict[str, Any]:
    """Return the mounts in gantry's order."""
    kinds: Mapping[str, Sequence[GantryMount]] = {
        "secret": inputs.secrets,
        "hostPath": inputs.mounts,
        "weka": inputs.weka,
    }
    mounts = [_mounted("beaker", mount) for mount in resolved.datasets]
    mounts += [_mounted(kind, mount) for kind, given in kinds.items() for mount in given]
    mounts += [_mounted("beaker", mount) for mount in resolved.uploads]
    return {"datasets": mounts} if mounts else {}


def _mounted(kind: str, mount: GantryMount) -> dict[str, Any]:
    return {"source": {kind: mount.source}, "mountPath": mount.path, **_given(subPath=mount.sub_path)}


def _nanoseconds(key: str, option: str, text: str | None) -> dict[str, int]:
    return {} if text is None else {key: to_nanoseconds(option, text)}


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


@cache
def command() -> tuple[str, ...]:
    """Return the command that starts the script, to which the user's command is passed as arguments."""
    script = Path(__file__).with_name("entrypoint.sh").read_text(encoding="ascii")
    return ("bash", "-c", script, "gantry")
