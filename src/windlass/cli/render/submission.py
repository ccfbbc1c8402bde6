"""Exact contents of what a launch would submit, with placeholders for values that only a launch knows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.cli.screen import emit, tell
from windlass.core.json_text import decode_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from windlass.backends import Rendered
    from windlass.launcher.prepare import Prepared

__all__ = ["emit_rendered_data", "emit_scripts"]

_MADE_UP = (
    "placeholders, replaced at launch: the run's id, the token, the user's name at a site, the paths of windlass.pyz "
    "and of the environment"
)


def emit_rendered_data(prepared: Prepared) -> None:
    """Print everything that the backend would receive, as JSON."""
    jobs = [
        {"task": task, "argv": list(rendered.argv), "files": _files(rendered)} for task, rendered in _rendered(prepared)
    ]
    tell(_MADE_UP)
    backend = prepared.plan.site.backend
    emit(json.dumps({"schema": "windlass.render/1", "backend": backend, "jobs": jobs}, indent=2))


def emit_scripts(prepared: Prepared) -> None:
    """Print each task's script as submitted (for Beaker, its spec), or the command that starts the task."""
    import shlex  # lazy: only for this option

    tell(_MADE_UP)
    for _, rendered in _rendered(prepared):
        tell(f"$ {shlex.join(rendered.argv)}")
        for name, text in rendered.files.items():
            if name != "job.json":
                emit(text.rstrip("\n"))


def _rendered(prepared: Prepared) -> Iterator[tuple[str, Rendered]]:
    """Yield a (task, rendered job) pair for each task, with a placeholder as the run id."""
    from windlass.backends.registry import backend_for  # lazy: only these options need them
    from windlass.launcher.remote.shared_home import check_state_folder
    from windlass.plan.job import RunPaths, job_document

    plan = prepared.plan
    check_state_folder(plan.site, prepared.home)
    run, profile = f"{plan.name}-xxxxxxxx", plan.site.profile
    state = prepared.home.path
    if profile is not None and profile.ssh:
        state = Path(profile.fs.shared.replace("${user}", "USER")) / "windlass"
    folder = state / "runs" / run
    places = RunPaths(
        run=run,
        run_dir=folder,
        code=folder / "code" / plan.pins.code.subdir,
        data={name: prepared.base / pin.source.removeprefix("file:") for name, pin in plan.pins.data.items()},
        lease=prepared.home.path / "leases" if profile is None else None,
        state=state,
        user="USER",
        virtual_env=state / "envs" / "KEY" if prepared.experiment.env.uv and profile is not None else None,
    )
    if plan.pins.builds:
        from windlass.launcher.stage.prepared_data import places_of_builds  # lazy: most experiments build no data

        places = replace(places, data={**places.data, **places_of_builds(plan, state)})
    backend = backend_for(plan.site)
    for task in plan.tasks:
        document = job_document(plan, task, places=places, job=1, token="x" * 32)
        archive = state / ("archives" if profile is not None and profile.ssh else "cache") / "windlass.pyz"
        yield task.name, backend.render(document, folder / "jobs" / f"{task.name}-1", archive)


def _files(rendered: Rendered) -> dict[str, object]:
    return {name: decode_json(text) if name.endswith(".json") else text for name, text in rendered.files.items()}
