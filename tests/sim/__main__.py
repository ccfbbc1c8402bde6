"""`python -m tests.sim`: replay one seed, or live through a range of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from tests.sim.mutants import MUTANTS, seeds_of
from tests.sim.simulate import Result, simulate
from tests.sim.site.mutants import SITE_MUTANTS
from windlass.core.errors import WindlassError

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Simulate what the command line asks for; 1 when an invariant did not hold."""
    chosen = _parser().parse_args(arguments)
    if chosen.mutants:
        return _print_mutants()
    seeds = [chosen.seed] if chosen.seed is not None else _range(chosen.seeds)
    try:
        failures = [result for result in _results(seeds, chosen.mutant, is_traced=chosen.trace) if result.failure]
    except WindlassError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_code
    _say(f"{len(failures)} of {len(seeds)} seeds failed")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, metavar="N", help="live through this one")
    which.add_argument("--seeds", metavar="A:B", help="live through seeds A to B - 1")
    which.add_argument("--mutants", action="store_true", help="find the seed at which each mutant is caught")
    parser.add_argument("--mutant", default="", metavar="NAME", help="break one policy first: " + ", ".join(MUTANTS))
    parser.add_argument("--trace", action="store_true", help="print everything that happened")
    return parser


def _print_mutants() -> int:
    """Print a line for each mutant; 1 when one is not caught."""
    num_alive = 0
    for mutant in MUTANTS:
        seeds = seeds_of(mutant)
        caught = next((result for seed in seeds if (result := simulate(seed, mutant=mutant)).failure), None)
        num_alive += caught is None
        place = "site" if mutant in SITE_MUTANTS else "machines"
        if caught is None:
            _say(f"{mutant:36} {place:8}  not caught in {len(seeds)} seeds")
        else:
            num = seeds.index(caught.seed) + 1
            _say(f"{mutant:36} {place:8}  seed {caught.seed:4}, the {num:3}. of its kind: {caught.failure}")
    return 1 if num_alive else 0


def _range(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first or 0), int(last))


def _results(seeds: Iterable[int], mutant: str, *, is_traced: bool) -> Iterable[Result]:
    for seed in seeds:
        result = simulate(seed, mutant=mutant, is_traced=is_traced)
        for line in result.trace:
            _say(line)
        if result.failure:
            _say(f"seed {seed}: {result.failure}")
            _say(f"  {result.replay_command}")
        elif is_traced:
            _say(f"seed {seed}: ok, {', '.join(result.states)} after {result.virtual_s:.0f} virtual seconds")
        yield result


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
