"""Launch configurations, as plain data: what OLMo-core makes of them is recorded in recipes.json.

Each has the fields of the configuration, and the settings of the call that makes its recipe.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CASES", "SECRETS"]

SECRETS = ("user_TOKEN", "TOKEN")
"""What the workspace has."""

_PLAIN = {"name": "run", "cmd": ["src/train.py", "--a", "b c"], "beaker_image": "someone/image"}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": (_PLAIN, {}),
    "one GPU": ({**_PLAIN, "num_gpus": 1}, {}),
    "no GPU": ({**_PLAIN, "num_gpus": 0}, {}),
    "two nodes": ({**_PLAIN, "num_nodes": 2}, {}),
    "two nodes of one GPU": ({**_PLAIN, "num_nodes": 2, "num_gpus": 1}, {}),
    "two nodes without GPU": ({**_PLAIN, "num_nodes": 2, "num_gpus": 0}, {}),
    "no torchrun": ({**_PLAIN, "torchrun": False}, {}),
    "torchrun of the call": ({**_PLAIN, "torchrun": False}, {"torchrun": True}),
    "no script": ({**_PLAIN, "cmd": ["bash", "-c", "x"]}, {}),
    "host network": ({**_PLAIN, "host_networking": True}, {}),
    "no host network": ({**_PLAIN, "host_networking": False, "num_nodes": 4}, {}),
    "words": (
        {**_PLAIN, "description": "why", "budget": "lab/b", "workspace": "lab/w", "task_name": "t", "retries": 2},
        {},
    ),
    "placement": ({**_PLAIN, "clusters": ["lab/a", "lab/b"], "gpu_types": ["h100"], "tags": ["x"]}, {}),
    "no clusters": ({**_PLAIN, "clusters": []}, {}),
    "priority": ({**_PLAIN, "priority": "urgent", "preemptible": False}, {}),
    "minimum": ({**_PLAIN, "min_runtime": "8h", "preemptible": True}, {}),
    "shared files": ({**_PLAIN, "shared_filesystem": True, "weka_buckets": [{"bucket": "b", "mount": "/weka/b"}]}, {}),
    "variables": (
        {**_PLAIN, "env_vars": [{"name": "A", "value": "1"}, {"name": "NCCL_DEBUG", "value": "WARN"}]},
        {},
    ),
    "secrets": (
        {
            **_PLAIN,
            "env_secrets": [
                {"name": "TOKEN", "secret": "user_TOKEN"},
                {"name": "OTHER", "secret": "missing", "required": False},
            ],
        },
        {},
    ),
    "credentials": (
        {**_PLAIN, "google_credentials_secret": "G", "aws_config_secret": "A", "aws_credentials_secret": "B"},
        {},
    ),
    "setup": ({**_PLAIN, "pre_setup": "a", "post_setup": "b", "system_python": False}, {}),
    "results": ({**_PLAIN, "result_dir": "/out", "shared_memory": "1GiB", "allow_dirty": True}, {}),
    "limits": ({**_PLAIN, "launch_timeout": 60, "step_timeout": 600, "step_soft_timeout": 300}, {}),
    "limits of the call": ({**_PLAIN, "launch_timeout": 60}, {"launch_timeout": 5, "step_timeout": 6}),
    "unfollowed": ({**_PLAIN, "follow": False}, {}),
    "unfollowed by the call": (_PLAIN, {"follow": False}),
    "units": ({**_PLAIN, "num_execution_units": 2, "num_nodes": 4}, {}),
    "image without owner": ({**_PLAIN, "beaker_image": "image"}, {}),
    "a required secret that is missing": ({**_PLAIN, "env_secrets": [{"name": "A", "secret": "missing"}]}, {}),
    "limits on steps, unfollowed": ({**_PLAIN, "step_timeout": 5}, {"follow": False}),
    "Slack, unfollowed": ({**_PLAIN, "slack_notifications": True}, {"follow": False}),
}
