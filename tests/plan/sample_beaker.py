"""A Beaker site that the tests of the planner share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from windlass.config.loading import from_data, load_config
from windlass.plan.pins import Pins
from windlass.plan.plan import Plan
from windlass.plan.planner import make_plan
from windlass.plan.site import Site
from windlass.sites.profile import Profile
from windlass.spec import Experiment

PLACE: dict[str, Any] = {
    "name": "lab",
    "kind": "beaker",
    "fs": {"shared": "/weka/main/me"},
    "beaker": {
        "workspace": "lab/main",
        "budget": "lab/money",
        "clusters": ["lab/alpha", "lab/beta"],
        "image": "beaker:me/image",
        "mounts": [
            {"path": "/weka/main", "weka": "main"},
            {"path": "/scratch", "host_path": "/local/scratch", "clusters": ["lab/alpha"], "read_only": True},
        ],
    },
    "partitions": {
        "lab/alpha": {"gpus": 8, "gpu_type": "h100", "cpus": 200},
        "lab/beta": {"gpus": 4, "gpu_type": "h100"},
        "lab/cpu": {"gpus": 0},
    },
    "net": {"interface": "ib", "interconnect": "infiniband"},
}


def beaker_site(partition: str = "", **changes: Any) -> Site:
    """The site, with sections changed."""
    profile = from_data(Profile, {**PLACE, **changes}, source="lab")
    return replace(Site.of(profile), partition=partition)


def beaker_plan(text: str, *overrides: str, site: Site | None = None, **options: Any) -> Plan:
    """The plan of an experiment there."""
    loaded = load_config(Experiment, text, source="e.yaml", overrides=list[str](_words(overrides)))
    return make_plan(loaded.value, Pins(), site or beaker_site(), origins=loaded.origins, **options)


def _words(overrides: Sequence[str]) -> Sequence[str]:
    return overrides
