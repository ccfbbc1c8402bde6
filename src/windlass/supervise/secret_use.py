"""Secrets on their way from the delivery file into one replica: what to redact, what the user's process gets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict

from windlass.supervise.job import JobDocument

__all__ = ["secret_values", "secret_variables"]


def secret_values(job: JobDocument) -> Dict[str, bytes]:
    """Name to value of the job's secrets, for the redactor; empty when there are none."""
    if not job.delivery:
        return {}
    from windlass.supervise.delivery import read_delivery  # lazy: most jobs have no secrets

    delivered = read_delivery(Path(job.delivery))
    return {use.name: delivered[use.name].encode() for use in job.secrets}


def secret_variables(job: JobDocument, folder: Path) -> Dict[str, str]:
    """Variables for the user's process: the value, or the path of a 0600 file in `folder` that holds it."""
    variables = {}
    for name, value in secret_values(job).items():
        if not next(use.is_file for use in job.secrets if use.name == name):
            variables[name] = value.decode()
            continue
        path = folder / name
        descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(value)
        variables[name] = str(path)
    return variables
