"""Choice of a launch's clusters by patterns, tags and GPU types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from windlass.compat.gantry.account import GantryAccount, GantryCluster
from windlass.compat.gantry.settings import RecipeSettings
from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError
from windlass.core.names import nearest

__all__ = ["WEKA_TAG", "Wishes", "place", "wishes_of"]

WEKA_TAG = "storage:weka"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Constraints on the choice of clusters; an empty constraint does not restrict it."""

    patterns: tuple[str, ...]
    tags: tuple[str, ...]
    gpu_types: tuple[str, ...]

    def __bool__(self) -> bool:
        """Return True if there is any constraint."""
        return bool(self.patterns or self.tags or self.gpu_types)

    @property
    def needs_beaker(self) -> bool:
        """Return True if the clusters cannot be resolved without Beaker."""
        return bool(self.tags or self.gpu_types or any("*" in pattern for pattern in self.patterns))

    def __str__(self) -> str:
        lists = (("name", self.patterns), ("tag", self.tags), ("GPU", self.gpu_types))
        return "; ".join(f"{what} {', '.join(values)}" for what, values in lists if values)


def wishes_of(recipe: RecipeSettings) -> Wishes:
    """Return the constraints in a recipe; Weka buckets need clusters with Weka, unless hosts are named."""
    tags = [*(recipe.tags or ())]
    if recipe.weka and not recipe.hostnames and WEKA_TAG not in tags:
        tags.append(WEKA_TAG)
    if recipe.interconnect:
        tags.append(f"interconnect:{recipe.interconnect}")
    return Wishes(patterns=tuple(recipe.clusters or ()), tags=tuple(tags), gpu_types=tuple(recipe.gpu_types or ()))


def place(wishes: Wishes, account: GantryAccount) -> tuple[str, ...]:
    """Return the names of the clusters that meet all constraints, in Beaker's order.

    Raises:
        NotFoundError: a pattern matches none, or no cluster is left.
    """
    known = [cluster for cluster in account.clusters() if cluster.takes_batch_jobs]
    for pattern in wishes.patterns:
        if not any(_is_named(cluster, pattern, account.organization) for cluster in known):
            close = nearest(pattern, [cluster.full_name for cluster in known])
            hint = f"did you mean `{close}`?" if close else "`windlass beaker` lists the clusters; patterns need `*`"
            raise NotFoundError(f"no cluster `{pattern}`", hint=hint, code="unknown-queue")
    checks: list[tuple[Sequence[str], Callable[[GantryCluster], bool]]] = [
        (wishes.patterns, lambda each: any(_is_named(each, one, account.organization) for one in wishes.patterns)),
        (wishes.tags, lambda each: set(wishes.tags) <= set(each.tags)),
        (wishes.gpu_types, lambda each: _has_gpu(account.gpu_type(each), wishes.gpu_types)),
    ]
    for wish, is_fulfilled in checks:
        known = [cluster for cluster in known if is_fulfilled(cluster)] if wish else known
    if not known:
        hint = "name another cluster, or fewer tags and GPU types"
        raise NotFoundError(f"no cluster has all of: {wishes}", hint=hint, code="unknown-queue")
    return tuple(cluster.full_name for cluster in known)


def _is_named(cluster: GantryCluster, pattern: str, organization: str) -> bool:
    """Return True if a cluster matches a name or a pattern with `*`; the default organization is the user's."""
    wanted, has_organization, name = pattern.partition("/")
    if not has_organization:
        wanted, name = organization, pattern
    if cluster.organization != wanted:
        return False
    names = (*cluster.aliases, cluster.name)
    return any(fnmatchcase(each, name) for each in names) if "*" in name else name in names


def _has_gpu(gpu_type: str, wanted: Sequence[str]) -> bool:
    return any(each.lower() in gpu_type.lower() for each in wanted) if gpu_type else False
