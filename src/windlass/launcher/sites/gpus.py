"""Hint that names sites with GPUs, for an experiment planned on a machine without GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from windlass.core.errors import Problem, SpecError, WindlassError
from windlass.plan.site import Site
from windlass.runs.home import Home

__all__ = ["gpu_sites_named"]

_MAX_SITES = 4


@contextmanager
def gpu_sites_named(sites: list[Site], home: Home) -> Iterator[None]:
    """Add the names of sites with GPUs to the hint of an error about missing GPUs.

    Raises:
        SpecError: raised by the block, with the longer hint.
    """
    try:
        yield
    except SpecError as error:
        if not any(site.machine is not None and site.machine.num_gpus == 0 for site in sites):
            raise
        raise SpecError(_named(problem, home) for problem in error.problems) from error


def _named(problem: Problem, home: Home) -> Problem:
    if problem.code != "does-not-fit" or " GPU" not in problem.message:
        return problem
    own, shipped = _sites(home)
    if own:
        places = ", ".join(f"`--on {name}`" for name in own[:_MAX_SITES])
        return replace(problem, hint=f"sites with GPUs: {places}; {problem.hint}")
    known = ", ".join(shipped[:_MAX_SITES])
    return replace(
        problem,
        hint=f"no site with GPUs is added; `windlass site add NAME` adds one, such as {known}; {problem.hint}",
    )


def _sites(home: Home) -> tuple[list[str], list[str]]:
    """Return the user's sites with GPUs, and the shipped ones."""
    from windlass.sites.store import find_site, site_names, sites_folder  # lazy: only errors need profiles

    own: list[str] = []
    shipped: list[str] = []
    for name in site_names(home.path):
        try:
            profile = find_site(name, home.path)
        except WindlassError:  # a broken profile is reported when it is used
            continue
        if any(partition.gpus for partition in profile.partitions.values()):
            is_own = (sites_folder(home.path) / f"{name}.yaml").exists()
            (own if is_own else shipped).append(name)
    return own, shipped
