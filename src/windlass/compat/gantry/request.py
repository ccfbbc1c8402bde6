"""Conversion of a recipe to a request, which only reads, and submission of the request to Beaker."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.compat.gantry.account import GantryAccount
from windlass.compat.gantry.checkout import Checkout, checkout_of, is_public, read_remote
from windlass.compat.gantry.following import FollowOptions, follow
from windlass.compat.gantry.mounts import GantryMount, Inputs, read_inputs
from windlass.compat.gantry.resolution import ResolvedLaunch, resolve
from windlass.compat.gantry.settings import RecipeSettings
from windlass.compat.gantry.spec import build_spec
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService
    from windlass.backends.beaker.values import BeakerJob, ExperimentRef

__all__ = ["GantryRequest", "Launched", "launch", "prepare", "submit", "yaml_of"]

_LONGEST_NAME = 100
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class GantryRequest:
    """Spec and name to submit, with the inputs from which they were made."""

    recipe: RecipeSettings
    inputs: Inputs
    checkout: Checkout
    resolved: ResolvedLaunch
    name: str
    spec: Mapping[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """Submitted request with its experiment and, if its end was awaited, the first replica's last job."""

    request: GantryRequest
    workload: ExperimentRef
    job: BeakerJob | None = None


def prepare(
    recipe: RecipeSettings,
    *,
    account: GantryAccount | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> GantryRequest:
    """Return the request for a recipe.

    Without an account only the local git is read; with one, names are resolved.

    Raises:
        WindlassError: a contradiction in the recipe, an error of git, or a name that Beaker does not have.
    """
    environ = os.environ if environ is None else environ
    recipe.check()
    inputs = read_inputs(recipe, environ)
    checkout = _checkout(recipe, folder or Path.cwd(), is_online=account is not None)
    resolved = resolve(recipe, inputs, checkout, account=account, environ=environ)
    name = recipe.name or _default_name(recipe, checkout)
    notes = list(resolved.notes)
    if account is not None:
        name = _free_name(account, name)
    if checkout.files is None:
        notes.append(f"the files of {checkout.repo} are read only at submission; a Python project is assumed")
    if checkout.is_dirty:
        notes.append("uncommitted changes are not included")
    spec = build_spec(recipe, inputs, checkout, resolved, name=name)
    return GantryRequest(
        recipe=recipe,
        inputs=inputs,
        checkout=checkout,
        resolved=resolved,
        name=name,
        spec=spec,
        notes=tuple(notes),
    )


def submit(request: GantryRequest, account: GantryAccount, service: BeakerService) -> ExperimentRef:
    """Create what the request needs, then submit the request exactly once, even if the reply is lost.

    Raises:
        WindlassError: raised by the service.
    """
    ids: dict[str, str] = {}
    for write in request.resolved.writes:
        if write.kind == "secret":
            account.write_secret(write.name, write.value)
        elif write.kind == "group":
            account.create_group(write.name)
        else:
            ids[write.name] = account.create_dataset(write.name, Path(write.value))
    uploads = tuple(
        GantryMount(source=ids.get(each.source, each.source), path=each.path) for each in request.resolved.uploads
    )
    resolved = replace(request.resolved, uploads=uploads)
    spec = build_spec(request.recipe, request.inputs, request.checkout, resolved, name=request.name)
    return service.create(spec, workspace=account.workspace, name=request.name)


def launch(
    recipe: RecipeSettings,
    *,
    following: FollowOptions | None = None,
    service: BeakerService | None = None,
    tell: Callable[[str], None] | None = None,
    emit: Callable[[bytes], None] | None = None,
    on_line: Callable[[bytes, float], None] | None = None,
    on_pause: Callable[[float], None] | None = None,
    on_made: Callable[[GantryRequest, ExperimentRef], None] | None = None,
) -> Launched:
    """Submit a recipe to Beaker and follow it as `following` says.

    Args:
        service: by default a new one, closed at the end.
        tell, emit: receive messages and log lines; by default standard error and standard output.
        on_line, on_pause: see `following.follow`.
        on_made: called as soon as the experiment exists, before it is followed.

    Raises:
        WindlassError: of `prepare` or the service; WaitTimeoutError if a limit is reached.
    """
    from windlass.compat.gantry.online import OnlineAccount  # lazy: only a launch talks to Beaker

    if service is None:
        from windlass.backends.beaker.service import BeakerService  # lazy: as above

        with contextlib.closing(BeakerService()) as own:
            return launch(
                recipe,
                following=following,
                service=own,
                tell=tell,
                emit=emit,
                on_line=on_line,
                on_pause=on_pause,
                on_made=on_made,
            )
    say = tell or _tell
    account = OnlineAccount(service, recipe.workspace or "")
    request = prepare(recipe, account=account)
    if recipe.save_spec:
        save_spec(request, Path(recipe.save_spec), may_overwrite=bool(recipe.yes))
    for note in request.notes:
        say(f"note: {note}")
    workload = submit(request, account, service)
    say(f"{workload.name}  {workload.url}")
    if on_made is not None:
        on_made(request, workload)
    if following is None or not following.is_wanted:
        return Launched(request=request, workload=workload)
    job = follow(service, workload.id, following, tell=say, emit=emit or _emit, on_line=on_line, on_pause=on_pause)
    return Launched(request=request, workload=workload, job=job)


def save_spec(request: GantryRequest, path: Path, *, may_overwrite: bool) -> None:
    """Write the spec to a YAML file.

    Raises:
        PreconditionError: the file exists and may not be overwritten.
    """
    if path.exists() and not may_overwrite:
        message = f"`--save-spec {path}`: the file already exists"
        raise PreconditionError(message, hint="add `--yes`, or use another name", code="already-exists")
    path.write_text(yaml_of(request.spec), encoding="utf-8")


def yaml_of(spec: Mapping[str, Any]) -> str:
    """Return a spec as YAML for Beaker's tools, with multi-line strings as blocks."""
    import yaml  # lazy: PyYAML costs 25 ms

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump(dict(spec), Dumper=Dumper, sort_keys=False, width=1000, allow_unicode=True)


def _checkout(recipe: RecipeSettings, folder: Path, *, is_online: bool) -> Checkout:
    if recipe.git_repo is not None:
        checkout = recipe.git_repo
    elif recipe.remote is not None:
        checkout = read_remote(recipe.remote, ref=recipe.ref, branch=recipe.branch, is_online=is_online)
    else:
        checkout = checkout_of(folder, ref=recipe.ref, branch=recipe.branch, is_online=is_online)
    if checkout.is_dirty and recipe.ref is None and not recipe.allow_dirty:
        message = f"{folder} has uncommitted changes, but the job uses only the last commit"
        raise PreconditionError(message, hint="git commit, and push; or add `--allow-dirty`", code="dirty-tree")
    if is_online and checkout.is_public is None:
        return replace(checkout, is_public=is_public(checkout.url))
    return checkout


def _default_name(recipe: RecipeSettings, checkout: Checkout) -> str:
    """Return a descriptive name, the same for every equal launch of the same commit."""
    told = asdict(replace(recipe, git_repo=None, callbacks=None, save_spec=None, yes=None))
    digest = hashlib.sha256(json.dumps([told, checkout.ref], default=str).encode()).hexdigest()
    words = f"{checkout.repo.rpartition('/')[2]}-{recipe.task_name}"
    return f"{_UNFIT.sub('-', words).strip('-.')[: _LONGEST_NAME - 9]}-{digest[:8]}"


def _free_name(account: GantryAccount, name: str) -> str:
    """Return the name, with a free number from 2 upwards appended if the name is taken."""
    number, free = 1, name
    while account.has_experiment(free):
        number += 1 if number < 10 else number // 2  # a nightly name may be taken a thousand times
        free = f"{name}-{number}"
    return free


def _tell(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _emit(line: bytes) -> None:
    sys.stdout.write(line.decode(errors="replace"))
    sys.stdout.flush()
