"""Inputs of a gantry job at another site: mounts, uploads, datasets and Weka buckets."""

from __future__ import annotations

from pathlib import Path

from windlass.compat.gantry.mounts import GantryMount
from windlass.compat.gantry.request import GantryRequest
from windlass.compat.to_experiment.destination import Destination
from windlass.compat.to_experiment.diagnostics import ConversionDiagnostics
from windlass.compat.to_experiment.relocation import OUT, Relocation

__all__ = ["paths_there"]


def paths_there(
    request: GantryRequest, place: Destination, folder: Path, diagnostics: ConversionDiagnostics
) -> Relocation:
    """Return the mapping of the job's paths to the site; inputs unavailable at the site are rejected.

    Args:
        folder: the local checkout, which contains the uploads.
    """
    inputs = request.inputs
    paths = {request.recipe.results: OUT.text, **place.paths}
    if place.kind == "beaker":  # its jobs have the mounts
        for mount in inputs.uploads:
            hint = "put the files on storage that the site mounts, or commit them"
            diagnostics.refuse(f"`--upload {mount.source}:{mount.path}`: `--on` uploads nothing", hint)
        return Relocation(paths=paths, present=place.present)
    known = _Known(paths, place.present, request.recipe.results)
    for mount in inputs.mounts:
        if mount not in known:
            paths[mount.path] = mount.source
            diagnostics.note(f"--mount {mount.source}:{mount.path}: the task uses {mount.source} itself")
    for mount in inputs.uploads:
        if place.kind == "local":
            paths[mount.path] = str((folder / mount.source).resolve())
        elif mount not in known:
            _refuse("--upload", mount, diagnostics)
    for option, mounts in (("--dataset", inputs.datasets), ("--weka", inputs.weka)):
        for mount in mounts:
            if mount not in known:
                _refuse(option, mount, diagnostics)
    for mount in inputs.secrets:
        hint = f"`--env-secret NAME={mount.source}`, and read the variable"
        diagnostics.refuse(
            f"`--dataset-secret {mount.source}:{mount.path}`: at this site secrets are only variables, not files", hint
        )
    return Relocation(paths=paths, present=place.present)


class _Known:
    """Set of mounts whose folder at the site is known, from the profile or another mount, or because it is the same."""

    def __init__(self, paths: dict[str, str], present: tuple[str, ...], results: str) -> None:
        self._paths, self._present, self._results = paths, present, results

    def __contains__(self, mount: GantryMount) -> bool:
        known = (*(path for path in self._paths if path != self._results), *self._present)
        return any(mount.path == each or mount.path.startswith(each.rstrip("/") + "/") for each in known)


def _refuse(option: str, mount: GantryMount, diagnostics: ConversionDiagnostics) -> None:
    hint = f"add its path to the site's profile: `brought: {{paths: {{{mount.path}: /FOLDER}}}}`"
    diagnostics.refuse(
        f"`{option} {mount.source}:{mount.path}` is on Beaker, and its path at the site is unknown", hint
    )
