"""The variables of a task, in mason's order, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.compat.mason.clusters import Clusters
from windlass.compat.mason.options import MasonOptions

__all__ = ["SECRETS", "task_variables"]

_DEFAULTS = {
    "RAY_CGRAPH_get_timeout": "300",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
    "NCCL_DEBUG": "ERROR",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
}

SECRETS = (
    "HF_TOKEN",
    "WANDB_API_KEY",
    "BEAKER_TOKEN",
    "OPENAI_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "AZURE_API_KEY",
    "AZURE_API_BASE",
    "ANTHROPIC_API_KEY",
    "SLACK_WEBHOOK_URL",
)
"""Secrets that a job gets without asking, where the workspace holds them: the user's own before the workspace's."""


def task_variables(
    options: MasonOptions,
    clusters: Clusters,
    *,
    environ: Mapping[str, str],
    user: str,
    secrets: Sequence[str],
    run_id: str,
    tracker_id: str,
    is_resumable: bool,
) -> list[dict[str, str]]:
    """`envVars` of a task; what the command line says beats what mason adds, each name counts once.

    Args:
        options: the command line's.
        clusters: what is known of clusters.
        environ: variables of the launch: its PATH is the job's, but in `--pure_docker_mode`.
        user: name on Beaker, the prefix of the user's own secrets.
        secrets: names of the workspace's secrets.
        run_id: the launch's run id, for the folder that is named by it.
        tracker_id: the task's run id, for the tracker.
        is_resumable: whether the tracker's run goes on after a restart.
    """
    own = [_plain(name, value) for name, value in options.env]
    own += [_secret(name, value) for name, value in options.secret]
    said = {variable["name"] for variable in own}
    before = [_plain(name, value) for name, value in _DEFAULTS.items()]
    after = _well_known(user, secrets)
    if not options.pure_docker_mode and "PATH" in environ:
        after.append(_plain("PATH", environ["PATH"]))
    after += _of_clusters(options, clusters, run_id)
    if is_resumable:
        after += [_plain("WANDB_RUN_ID", tracker_id), _plain("WANDB_RESUME", "allow")]
    return [each for each in before if each["name"] not in said] + own + [e for e in after if e["name"] not in said]


def _plain(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


def _secret(name: str, secret: str) -> dict[str, str]:
    return {"name": name, "secret": secret}


def _well_known(user: str, secrets: Sequence[str]) -> list[dict[str, str]]:
    found = []
    for name in SECRETS:
        held = next((each for each in (f"{user}_{name}", name) if each in secrets), None)
        if held is not None:
            found.append(_secret(name, held))
    return found


def _of_clusters(options: MasonOptions, clusters: Clusters, run_id: str) -> list[dict[str, str]]:
    if not clusters.has_weka(options.cluster):
        return []
    lines = [*clusters.weka.variables, *(clusters.weka.multi_node_variables if options.num_nodes > 1 else ())]
    pairs = (line.partition("=") for line in lines)
    return [_plain(name, value.replace("{run_id}", run_id)) for name, _, value in pairs]
