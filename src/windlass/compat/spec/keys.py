"""Table of the keys in Beaker's experiment spec v2, with their types."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CONSTRAINTS", "CONTEXT", "DATASET", "ENV_VAR", "EXPERIMENT", "IMAGE", "PRIORITIES", "RESOURCES", "RESULT"]
__all__ += ["RETRY", "SOURCE", "TASK"]

PRIORITIES = ("low", "normal", "high", "urgent", "immediate", "preemptible")
"""`preemptible` was a priority in the first version of the client."""

IMAGE: Mapping[str, str] = {"beaker": "text", "docker": "text"}
ENV_VAR: Mapping[str, str] = {"name": "text", "value": "scalar", "secret": "text"}
SOURCE: Mapping[str, str] = dict.fromkeys(("beaker", "hostPath", "weka", "result", "secret", "volume"), "text")
DATASET: Mapping[str, str] = {"source": "mapping", "mountPath": "text", "subPath": "text", "mode": "text"}
RESULT: Mapping[str, str] = {"path": "text"}
RESOURCES: Mapping[str, str] = {"cpuCount": "number", "gpuCount": "whole", "memory": "size", "sharedMemory": "size"}
CONTEXT: Mapping[str, str] = {
    "cluster": "text",
    "priority": "text",
    "preemptible": "flag",
    "minRuntime": "duration",
    "autoResume": "flag",
}
CONSTRAINTS: Mapping[str, str] = {"cluster": "names", "hostname": "names"}
"""The client also accepts a single name as text, and sends it unchanged."""
TASK: Mapping[str, str] = {
    "name": "text",
    "image": "mapping",
    "command": "words",
    "arguments": "words",
    "envVars": "list",
    "datasets": "list",
    "result": "mapping",
    "resources": "mapping",
    "context": "mapping",
    "constraints": "mapping",
    "hostNetworking": "flag",
    "replicas": "whole",
    "leaderSelection": "flag",
    "propagateFailure": "flag",
    "propagatePreemption": "flag",
    "synchronizedStartTimeout": "duration",
    "timeout": "duration",
}
RETRY: Mapping[str, str] = {"allowedTaskRetries": "whole"}
EXPERIMENT: Mapping[str, str] = {
    "version": "text",
    "description": "text",
    "budget": "text",
    "groups": "texts",
    "retry": "mapping",
    "tasks": "list",
}
