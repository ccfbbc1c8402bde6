"""Creation of an experiment, which happens exactly once even if a process dies in between.

The job's folder is on disk before Beaker is called, and the experiment's name is derived from the job's token. So a
client that finds a folder without a result calls again, and Beaker reports that the experiment exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from windlass.backends.beaker.render import experiment_name
from windlass.backends.beaker.service import BeakerService
from windlass.backends.beaker.values import ExperimentRef
from windlass.backends.protocol import Rendered, Submission
from windlass.core.errors import AccessError, PreconditionError
from windlass.core.files import lock, write_atomic, write_json
from windlass.core.json_text import decode_json, read_json
from windlass.core.names import nearest
from windlass.supervise.job import JobDocument

__all__ = ["check_secrets", "secrets_in", "submit"]

_SUBMITTED = "submitted.json"
_LOCK = "submit.lock"
_LOCK_S = 300.0


def submit(
    service: BeakerService,
    rendered: Rendered,
    push: Callable[[Path, PurePath], None] | None,
    *,
    profile_name: str,
) -> Submission:
    """See `Backend.submit`."""
    folder = rendered.folder
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / _LOCK, timeout_s=_LOCK_S):
        known = _known(folder)
        if known is not None:
            return known
        for name, content in rendered.files.items():
            write_atomic(folder / name, content.encode())
        document = JobDocument.read(folder / "job.json")
        spec = decode_json(rendered.files["beaker.json"])
        workspace = document.beaker.workspace
        check_secrets(spec, service.secrets(workspace) if secrets_in(spec) else (), workspace)
        if push is not None:
            push(folder, PurePath(document.paths.run_dir) / "jobs" / folder.name)
        made = _make(service, spec, workspace, experiment_name(document))
        found = Submission(backend_id=made.id, locator=made.url, folder=folder)
        write_json(folder / _SUBMITTED, {"id": found.backend_id, "locator": found.locator, "site": profile_name})
        return found


def _make(service: BeakerService, spec: Mapping[str, Any], workspace: str, name: str) -> ExperimentRef:
    try:
        return service.create(spec, workspace=workspace, name=name, is_mine=True)
    except PreconditionError as error:
        found = service.find(workspace, name) if error.code == "already-exists" else None
        if found is None:
            raise
        return (
            found  # the name is derived from the job's token: it is this job, rendered by another version of windlass
        )


def secrets_in(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the secrets in a spec, by variable or mount."""
    found: dict[str, str] = {}
    for task in spec.get("tasks") or ():
        for variable in task.get("envVars") or ():
            if variable.get("secret"):
                found[f"variable {variable.get('name')}"] = str(variable["secret"])
        for mount in task.get("datasets") or ():
            if (mount.get("source") or {}).get("secret"):
                found[f"mount {mount.get('mountPath')}"] = str(mount["source"]["secret"])
    return found


def check_secrets(spec: Mapping[str, Any], known: tuple[str, ...], workspace: str) -> None:
    """Raise if a spec names missing secrets; its jobs would wait for them forever, or fail.

    Letter case matters: one of Beaker's queries ignores it, but the lookup for jobs does not.

    Raises:
        AccessError: names all missing secrets (`beaker-secret-missing`).
    """
    missing = {place: name for place, name in secrets_in(spec).items() if name not in known}
    if not missing:
        return
    listed = ", ".join(f"`{name}` ({place})" for place, name in missing.items())
    first = next(iter(missing.values()))
    same = [name for name in known if name.lower() == first.lower()]
    close = same[0] if same else nearest(first, known)
    case = ": letter case matters" if same else ""
    meant = f"did you mean `{close}`{case}? " if close else ""
    hint = f"{meant}windlass beaker secret push {first} --workspace {workspace} adds yours"
    raise AccessError(
        f"{f'workspace {workspace}' if workspace else 'the default workspace'} has no secret {listed}",
        hint=hint,
        code="beaker-secret-missing",
    )


def _known(folder: Path) -> Submission | None:
    """Return the experiment that an earlier call created, or None."""
    path = folder / _SUBMITTED
    if not path.exists():
        return None
    try:
        said = read_json(path)
        assert isinstance(said, dict)
        return Submission(backend_id=said["id"], locator=said["locator"], folder=folder)
    except (ValueError, KeyError, AssertionError) as error:
        raise PreconditionError(f"{path} is damaged: {error}", code="plan-broken") from error
