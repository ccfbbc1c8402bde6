"""Prepared data at a site or machine: existing builds, expected sizes and checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from windlass.core.errors import NotFoundError, PreconditionError, SourcePlace, WindlassError
from windlass.core.json_text import decode_json
from windlass.core.names import nearest
from windlass.launcher.verify.finding import Finding
from windlass.pin.builds import BUILT, built_folder, code_of_build
from windlass.pin.data.pinned import BuildPin
from windlass.plan.builds import expected_inputs, pin_builds, with_commands
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.pins import BUILDS, Pins
from windlass.plan.plan import Plan
from windlass.plan.site import Site
from windlass.runs.archive.origin import is_imported
from windlass.runs.home import Home
from windlass.runs.store import RunFolder
from windlass.spec import Experiment, Task
from windlass.supervise.builds.built_data import LAST, RECORD, full_differences, quick_difference
from windlass.supervise.builds.once import READY, find_ready

__all__ = ["builds_alone", "check_builds_of", "check_built", "places_of_builds", "with_built"]


def with_built(
    experiment: Experiment,
    pins: Pins,
    site: Site,
    home: Home,
    *,
    code_folder: Path | None,
    origins: Mapping[str, SourcePlace] | None = None,
) -> Pins:
    """Return the pins with prepared data added: its keys, and the builds that exist at the site.

    Args:
        code_folder: the user's code; None to use the code of existing build pins.

    Raises:
        SpecError: a build is invalid.
        PreconditionError, UnreachableError: the code cannot be read, or the site cannot be reached.
    """
    if not any(source.is_built for source in experiment.data.values()):
        return pins
    diagnostics = Diagnostics(origins)
    code = {name: pin.code for name, pin in pins.builds.items()}
    if code_folder is not None:
        declared = {name: source for name, source in experiment.data.items() if source.is_built}
        code = {name: code_of_build(name, pins.code, code_folder, source.code) for name, source in declared.items()}
    builds = pin_builds(experiment, pins, code, diagnostics)
    diagnostics.raise_all()
    found = _found(builds, experiment.name, site, home)
    for name, (notes, last) in found.items():
        builds[name] = _as_found(builds[name], notes, last)
        if not builds[name].is_hit and last is None:
            size = expected_inputs(name, experiment, replace(pins, builds=builds))
            builds[name] = replace(builds[name], expected="inputs" if size else "", size_bytes=size)
    return replace(pins, builds=builds)


def builds_alone(experiment: Experiment, names: Sequence[str] = ()) -> Experiment:
    """Return the experiment with a single task that needs its prepared data, so that only the data is built.

    The keys are those of the complete experiment.

    Args:
        names: names of data to build; all if empty.

    Raises:
        NotFoundError: the experiment builds no data of that name.
        SpecError: a build is invalid.
    """
    built = [name for name, source in experiment.data.items() if source.is_built]
    for name in names or built[:1] or [""]:
        if name not in built:
            close = nearest(name, built)
            hint = f"did you mean `{close}`?" if close else f"it builds: {', '.join(built) or 'nothing'}"
            message = f"{experiment.name} builds no data `{name}`" if name else f"{experiment.name} builds no data"
            raise NotFoundError(message, hint=hint, code="unknown-name")
    chosen = names or built
    tasks = {"built": Task(run=("echo", *(f"${{data.{name}}}" for name in chosen)))}
    return replace(experiment, data=with_commands(experiment), tasks=tasks)


def places_of_builds(plan: Plan, state: Path) -> dict[str, Path]:
    """Return the path of each build's folder, below windlass's folder at the site."""
    return {name: built_folder(state, pin.key) for name, pin in plan.pins.builds.items()}


def check_built(plan: Plan, state: Path) -> None:
    """Raise if prepared data was removed or rebuilt since the launch was planned. Reads no content."""
    for name, pin in plan.pins.builds.items():
        place = built_folder(state, pin.key).parent
        if not pin.is_hit:
            continue
        ready = find_ready(place)
        problem = "it was removed" if ready is None else quick_difference(place)
        if ready is not None and not problem and ready.notes.get("digest") != pin.digest:
            problem = "it was rebuilt with different content"
        if problem:
            raise PreconditionError(
                f"data `{name}` ({place}) changed since the plan was made: {problem}",
                hint="launch again to rebuild it",
                code="input-changed",
            )


def check_builds_of(run: RunFolder, plan: Plan, home: Home) -> Iterator[Finding]:
    """Compare prepared data with the run's record. Every byte of the data is read."""
    for name, pin in plan.pins.builds.items():
        what, place = f"data {name}", built_folder(home.path, pin.key).parent
        ready = find_ready(place)
        wanted = pin.digest or str((_record_of(run, name) or {}).get("digest", ""))
        if not wanted:
            yield Finding(what=what, status="skipped", message="its build did not succeed in this run")
        elif ready is None and is_imported(run):
            yield Finding(what=what, status="skipped", message="not included in the archive; a rerun builds it again")
        elif ready is None and run.is_mirrored:
            yield Finding(what=what, status="skipped", message=f"at {plan.site.name}")
        elif ready is None:
            yield Finding(what=what, status="failed", message=f"{place} was removed; the next launch builds it again")
        elif ready.notes.get("digest") != wanted:
            message = f"rebuilt: sha256:{str(ready.notes.get('digest'))[:12]}, the run had {wanted[:12]}"
            yield Finding(what=what, status="failed", message=message)
        else:
            yield _compared(what, wanted, place)


def _compared(what: str, digest: str, place: Path) -> Finding:
    try:
        found = full_differences(place)
    except WindlassError as error:
        return Finding(what=what, status="failed", message=error.message)
    if found:
        message = "\n".join(
            [f"{len(found)} of its files differ", *(f"{path}: {problem}" for path, problem in found[:10])]
        )
        return Finding(what=what, status="failed", message=message)
    return Finding(what=what, status="ok", message=f"built, sha256:{digest[:12]}")


def _record_of(run: RunFolder, name: str) -> Mapping[str, object] | None:
    """Return the record of the task that built the data in this run, or None."""
    path = run.out(f"{BUILDS}{name}") / RECORD
    return _read(path.read_text()) if path.exists() else None


def _as_found(pin: BuildPin, notes: Mapping[str, object] | None, last: Mapping[str, object] | None) -> BuildPin:
    if notes is None and last is not None:
        return replace(pin, expected="last build", size_bytes=_number(last, "size_bytes"))
    if notes is None:
        return pin
    return replace(
        pin,
        is_hit=True,
        digest=str(notes.get("digest", "")),
        size_bytes=_number(notes, "size_bytes"),
        num_files=_number(notes, "num_files"),
    )


def _number(data: Mapping[str, object], key: str) -> int:
    value = data.get(key)
    return value if isinstance(value, int) else 0


_Found = tuple[Mapping[str, object] | None, Mapping[str, object] | None]


def _found(builds: Mapping[str, BuildPin], experiment: str, site: Site, home: Home) -> dict[str, _Found]:
    """Return two notes for each build, by name: on the finished build, and on the last build with the same name."""
    profile = site.profile
    if profile is not None and profile.ssh:
        from windlass.backends.site_shell import shell_for  # lazy: most places are this machine

        shell = shell_for(profile)
        if not shell.is_local:
            return _found_there(builds, experiment, site)
    found: dict[str, _Found] = {}
    for name, pin in builds.items():
        place = built_folder(home.path, pin.key).parent
        ready = find_ready(place)
        is_whole = ready is not None and not quick_difference(place)
        last = place.parent / LAST / f"{experiment}.{name}.json"
        text = last.read_text() if last.exists() else ""
        found[name] = (ready.notes if ready is not None and is_whole else None, _read(text))
    return found


_LOOK = """for each; do cat "$each" 2>/dev/null; printf '\\0'; done"""


def _found_there(builds: Mapping[str, BuildPin], experiment: str, site: Site) -> dict[str, _Found]:
    from windlass.backends.site_shell import shell_for  # lazy: as above
    from windlass.launcher.remote.mirror import state_at_site  # lazy: as above

    profile = site.profile
    assert profile is not None  # checked by the caller
    shell = shell_for(profile)
    built = PurePosixPath(state_at_site(profile, shell)) / BUILT
    paths = [
        str(path)
        for name, pin in builds.items()
        for path in (built / pin.key / READY, built / LAST / f"{experiment}.{name}.json")
    ]
    answer = shell.run(["sh", "-c", _LOOK, "sh", *paths])
    texts = answer.out.split("\0")
    pairs = zip(builds, texts[::2], texts[1::2], strict=False)
    return {name: (_read(ready), _read(last)) for name, ready, last in pairs}


def _read(text: str) -> Mapping[str, object] | None:
    try:
        data = decode_json(text)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None
