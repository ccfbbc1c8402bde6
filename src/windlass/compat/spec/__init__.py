"""Beaker's experiment spec v2: reading, conversion to experiments, and lossless writing.

Throughout `compat`, a spec is plain data with Beaker's keys.
"""

from __future__ import annotations

from windlass.compat.spec.importing import experiment_name, to_experiment
from windlass.compat.spec.leaving import check_export
from windlass.compat.spec.reading import SpecFile, checked_spec, read_spec, sent
from windlass.compat.spec.writing import BEAKER_IMAGE, from_experiment

__all__ = [
    "BEAKER_IMAGE",
    "SpecFile",
    "check_export",
    "checked_spec",
    "experiment_name",
    "from_experiment",
    "read_spec",
    "sent",
    "to_experiment",
]
