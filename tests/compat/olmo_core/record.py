"""Write recipes.json: what OLMo-core itself makes of the cases. By hand, where ai2-olmo-core and gantry are installed.

python -m tests.compat.olmo_core.record
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.compat.olmo_core.cases import CASES, SECRETS

RECORDED = Path(__file__).with_name("recipes.json")


def _image(name: str) -> SimpleNamespace:
    return SimpleNamespace(id=f"id of {name}")


def _record(fields: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    from gantry.api import GitRepoState

    genuine: Any = importlib.import_module("olmo_core.launch.beaker")
    kinds = {
        "env_vars": genuine.BeakerEnvVar,
        "env_secrets": genuine.BeakerEnvSecret,
        "weka_buckets": genuine.BeakerWekaBucket,
    }
    made = {key: [kinds[key](**each) for each in value] if key in kinds else value for key, value in fields.items()}
    here = GitRepoState(repo="lab/project", repo_url="https://github.com/lab/project", ref="0" * 40, _is_remote=True)
    config = genuine.BeakerLaunchConfig(git=here, **made)
    client = SimpleNamespace(image=SimpleNamespace(get=_image))

    @contextlib.contextmanager
    def connect(**_: Any) -> Iterator[Any]:
        yield client

    genuine.get_beaker_client = connect
    genuine.BeakerLaunchConfig._secret_exists = lambda self, secret: secret.secret in SECRETS
    try:
        recipe, watching = config._build_recipe(client, **settings)
    except Exception as error:  # noqa: BLE001 - whatever it refuses, we must refuse
        return {"refused": type(error).__name__}
    told = dataclasses.asdict(dataclasses.replace(recipe, callbacks=None, git_repo=None))
    return {"recipe": {key: value for key, value in told.items() if value}, "watching": watching}


def main() -> None:
    """Record all cases."""
    for name in ("SLACK_WEBHOOK_URL", "BEAKER_JOB_ID"):
        os.environ.pop(name, None)
    found = {name: _record(fields, settings) for name, (fields, settings) in CASES.items()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each, default=str)}" for name, each in found.items())
    RECORDED.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
