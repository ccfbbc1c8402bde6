"""Options of a gantry launch that work differently at another site or only at Beaker, each with a note or a problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from windlass.compat.gantry.placement import wishes_of
from windlass.compat.gantry.settings import RecipeSettings
from windlass.compat.to_experiment.destination import Destination
from windlass.compat.to_experiment.diagnostics import ConversionDiagnostics

__all__ = ["check_at_beaker", "note_on_beaker", "note_on_job"]


def note_on_job(recipe: RecipeSettings, diagnostics: ConversionDiagnostics) -> None:
    """Note the differences between gantry's jobs and windlass's that exist at every site."""
    given = {
        "--no-host-networking": recipe.host_networking is False and "at this site tasks use the host's network",
        "--no-leader-selection": recipe.leader_selection is False and "the first replica is always the leader",
        "--skip-nccl-setup": recipe.skip_nccl_setup and "windlass sets no NCCL variables",
        "--runtime-dir": recipe.runtime_dir != "/gantry-runtime" and "the site sets the code's folder",
    }
    diagnostics.note(*(f"{option}: {said}" for option, said in given.items() if said))
    if recipe.num_replicas and (recipe.propagate_failure is False or recipe.propagate_preemption is False):
        diagnostics.note("the replicas form one gang: if one fails, all are ended")


def check_at_beaker(
    recipe: RecipeSettings, place: Destination, diagnostics: ConversionDiagnostics, *, has_partition: bool
) -> None:
    """Check settings that the profile of a Beaker site overrides.

    Constraints that only a plain launch resolves to clusters are rejected.
    """
    if recipe.workspace:
        said = f"the run uses the workspace in the profile of `{place.name}`"
        diagnostics.note(f"--workspace {recipe.workspace}: {said}")
    wishes = wishes_of(replace(recipe, weka=None, clusters=None if has_partition else recipe.clusters))
    if wishes.needs_beaker:
        hint = "name clusters in full: `--cluster ORGANIZATION/NAME`; or remove it to use the profile's clusters"
        diagnostics.refuse(f"`--on` cannot select clusters by: {wishes}", hint)
    for name in recipe.group_names or ():
        if "/" not in name:
            diagnostics.refuse(f"`--group {name}`: with `--on` the group needs its owner", f"--group OWNER/{name}")


def note_on_beaker(
    recipe: RecipeSettings, place: Destination, diagnostics: ConversionDiagnostics, *, has_partitions: bool
) -> None:
    """Add a note for each option that only Beaker supports."""
    clusters: Sequence[str] | None = None if has_partitions else recipe.clusters
    given = {
        "--workspace": recipe.workspace,
        "--budget": recipe.budget,
        "--cluster": clusters,
        "--gpu-type": recipe.gpu_types,
        "--tag": recipe.tags,
        "--interconnect": recipe.interconnect,
        "--hostname": recipe.hostnames,
        "--min-runtime": recipe.min_runtime,
        "--group": (recipe.group_names or ())[1:],
    }
    for option, value in given.items():
        if value:
            shown = value if isinstance(value, str) else " ".join(value)
            diagnostics.note(f"{option} {shown} applies only to Beaker and is ignored at `{place.name}`")
