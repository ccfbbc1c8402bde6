"""Placement of an experiment: its resources at one site, and the choice among several sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from windlass.core.errors import Problem, SourcePlace, SpecError
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.placement_result import Placement
from windlass.plan.site import Site
from windlass.spec import Experiment

__all__ = ["choose_site", "place_tasks", "split_place"]


def place_tasks(
    experiment: Experiment, site: Site, diagnostics: Diagnostics, *, best_effort: bool, reshape: bool
) -> Placement:
    """Choose the shape and queue of every task; add unsupported settings to `diagnostics`. Pure."""
    if site.backend == "beaker":
        from windlass.plan.beaker.placement import place_on_beaker as place  # lazy: a local plan needs no site profiles
    elif site.backend == "slurm":
        from windlass.plan.slurm.placement import place_on_slurm as place  # lazy: as above
    else:
        from windlass.plan.local import place_locally as place  # lazy: only needed for Beaker sites
    return place(experiment, site, diagnostics, best_effort=best_effort, reshape=reshape)


def split_place(text: str) -> tuple[str, str]:
    """Split an entry of `where` (`isambard/gpu`) into site and partition, which may be empty."""
    name, _, partition = text.partition("/")
    return name, partition


def choose_site(
    experiment: Experiment,
    candidates: Sequence[Site],
    *,
    best_effort: bool = False,
    reshape: bool = False,
    origins: Mapping[str, SourcePlace] | None = None,
) -> Site:
    """Return the first site or partition at which the experiment fits. Pure.

    A site without a named or default partition stands for all its partitions. A single candidate is returned unchecked;
    `make_plan` reports its problems.

    Returns:
        The place, with its partition and the reasons why earlier places were rejected.

    Raises:
        SpecError: no place fits; contains every problem of every place.
    """
    places = [place for site in candidates for place in _places(site)]
    if len(places) == 1:
        return places[0]
    problems: list[Problem] = []
    passed: list[str] = []
    for place in places:
        diagnostics = Diagnostics(origins)
        place_tasks(experiment, place, diagnostics, best_effort=best_effort, reshape=reshape)
        try:
            diagnostics.raise_all()
        except SpecError as error:
            passed.append(f"{_named(place)}: {error.problems[0].message}")
            problems += [replace(problem, message=f"{_named(place)}: {problem.message}") for problem in error.problems]
            continue
        return replace(place, passed_over=tuple(passed))
    raise SpecError(problems)


def _places(site: Site) -> Iterator[Site]:
    profile = site.profile
    if profile is None or profile.kind == "beaker":  # a Beaker job may request several clusters at once
        yield site
        return
    if site.partition or profile.scheduler.partition or not profile.partitions:
        yield site
        return
    for name in profile.partitions:
        yield replace(site, partition=name)


def _named(site: Site) -> str:
    return f"{site.name}/{site.partition}" if site.partition else site.name
