"""Random search that covers the space more evenly, with a low-discrepancy sequence scrambled by the seed.

The point of a sample depends only on its number, so any concurrency, order or restart gives the same trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.tune.errors import BadValueError
from windlass.tune.rng import draw_int
from windlass.tune.search.defaults import SearcherDefaults, library
from windlass.tune.search.protocol import Objectives, Suggestion
from windlass.tune.space.computed import Computed
from windlass.tune.space.domains import NUM_BITS
from windlass.tune.space.tree import DomainNode, Pick

__all__ = ["QuasiRandom"]

_PRECISION = 2**-40


class QuasiRandom(SearcherDefaults):
    """Search along a Sobol or Halton sequence; grids are enumerated for each point in it.

    `halton` needs no library and is good up to about ten parameters; `sobol` needs the extra `tune`.
    """

    def __init__(
        self,
        sequence: str = "sobol",
        *,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int = 0,
    ) -> None:
        """Choose the sequence.

        Raises:
            UsageError: the sequence is unknown.
        """
        if sequence not in ("sobol", "halton"):
            raise BadValueError(
                f"unknown sequence {sequence!r}", hint='use "sobol" or "halton"', code="searcher-option"
            )
        super().__init__(points=points_to_evaluate or (), max_concurrent=max_concurrent)
        self.sequence = sequence

    def open(self, *, space: Mapping[str, Any], objectives: Objectives, seed: int, num_samples: int) -> None:
        """Start the search; see `SearchAlgorithm.open`."""
        super().open(space=space, objectives=objectives, seed=seed, num_samples=num_samples)
        drawn = [node for node in self.space.parameters if not _is_apart(node)]
        self._dimensions = {node.key: number for number, node in enumerate(drawn)}
        self._sobol = _Sobol(len(drawn), seed) if self.sequence == "sobol" and drawn else None

    def num_trials(self) -> float:
        """Return the number of trials: one for each preset, and a whole grid for every other sample."""
        if self.num_samples < 0:
            return float("inf")
        return len(self.points) + max(self.num_samples - len(self.points), 0) * self.space.grid_size

    def propose(self, number: int) -> Suggestion:
        """Return the configuration for a trial that is not one of the preset points."""
        index, grid_index = divmod(number - len(self.points), self.space.grid_size)

        def bits(key: str) -> int:
            if key not in self._dimensions:
                return draw_int(self.seed, "space", "sample", index, key)
            if self._sobol is not None:
                return self._sobol.bits(index, self._dimensions[key])
            return halton(index, self._dimensions[key], self.seed)

        config, assigned = self.space.at(bits, grid_index)
        return Suggestion(config=config, assigned=assigned)

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `SearchAlgorithm.settings`."""
        return {**super().settings(), "sequence": self.sequence}


def halton(index: int, dimension: int, seed: int) -> int:
    """Return 64 bits of a point's coordinate.

    They are the digits of its index in a prime base, reversed and scrambled.

    Each digit goes through a random affine map that depends on all digits before it. Costs 40 to 150 us.

    Source: Owen 1995, nested scrambling; affine maps as in Matousek 1998, "On the L2-discrepancy", section 2.
    """
    base = _prime(dimension)
    share, weight, prefix = 0.0, 1.0 / base, 0
    while weight > _PRECISION:
        index, digit = divmod(index, base)
        noise = draw_int(seed, "halton", dimension, prefix)
        turned = ((1 + noise % (base - 1)) * digit + (noise >> 32) % base) % base if base > 2 else digit ^ (noise & 1)
        share += turned * weight
        weight /= base
        prefix = prefix * base + digit + 1
    return min(int(share * float(1 << NUM_BITS)), (1 << NUM_BITS) - 1)


class _Sobol:
    """Points of a scrambled Sobol sequence, generated in batches that double in size."""

    def __init__(self, num_dimensions: int, seed: int) -> None:
        qmc = library("scipy.stats.qmc", "QuasiRandom", hint="pip install 'windlass[tune]', or sequence=\"halton\"")
        generator = library("numpy.random", "QuasiRandom").default_rng(draw_int(seed, "sobol"))
        self._engine = qmc.Sobol(num_dimensions, scramble=True, rng=generator)
        self._points: list[Sequence[float]] = []

    def bits(self, index: int, dimension: int) -> int:
        while index >= len(self._points):
            self._points.extend(self._engine.random(max(len(self._points), 64)))
        share = float(self._points[index][dimension])
        return int(share * float(1 << NUM_BITS))


def _is_apart(node: DomainNode | Pick) -> bool:
    """Return whether a parameter has no coordinate, as for a grid or a computed value."""
    return node.is_grid if isinstance(node, Pick) else isinstance(node.domain, Computed)


def _prime(number: int) -> int:
    found: list[int] = []
    candidate = 2
    while len(found) <= number:
        if all(candidate % prime for prime in found):
            found.append(candidate)
        candidate += 1
    return found[-1]
