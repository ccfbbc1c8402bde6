"""Broken copies of files that decide much, each of which the file's own tests must notice.

cosmic-ray changes one operator, number, comparison or statement at a time; a sample of the changes is tried, the same
for each seed. Its mutants are imported in place of the shipped file, which stays as it is on disk:

    .venv-dev/bin/python -m pip install --target build/mutation cosmic-ray==8.7.0
    .venv-dev/bin/python -m scripts.mutation [FILE...]

What was found: docs/evidence/mutation.md. Mutants of whole policies in whole histories: tests/sim/mutants.py.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.abc
import importlib.util
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from itertools import islice
from pathlib import Path
from types import ModuleType

from scripts.tree import ROOT

__all__ = ["TARGETS", "main"]

LIBRARY = ROOT / "build" / "mutation"
FOLD = ("tests/record/test_precedence.py", "tests/record/test_retry.py", "tests/record/test_fold.py")
TARGETS: Mapping[str, tuple[str, ...]] = {
    "record/retry.py": ("tests/record/test_retry.py",),
    "record/lifecycle.py": FOLD,
    "record/state.py": FOLD,
    "record/facts.py": FOLD,
    "plan/bundles.py": ("tests/plan/test_bundles.py",),
    "plan/shape.py": ("tests/plan/test_shape.py",),
    "supervise/fencing/fence.py": ("tests/supervise/fencing/test_fence.py",),
    "tune/schedulers/async_hyperband.py": (
        "tests/tune/schedulers/test_asha.py",
        "tests/tune/schedulers/test_traces.py",
    ),
    "tune/schedulers/hyperband.py": (
        "tests/tune/schedulers/test_hyperband.py",
        "tests/tune/schedulers/test_traces.py",
    ),
}
"""Files below src/windlass, and the unit tests that belong to each."""

_EQUIVALENT = frozenset({"core/ReplaceComparisonOperator_Is_Eq", "core/ReplaceComparisonOperator_IsNot_NotEq"})
"""Operators whose mutants are not tried: the code compares only None and members of enums by `is`."""

_SLOWEST = 20
"""A mutant that takes so many times longer than the shipped file has no end: it was noticed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Try mutants of the files and print what became of them; 1 when the tests fail without any."""
    parser = argparse.ArgumentParser(prog="python -m scripts.mutation", description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="below src/windlass; by default all of TARGETS")
    parser.add_argument("--sample", type=int, default=80, metavar="N", help="mutants of each file (default: 80)")
    parser.add_argument("--seed", type=int, default=0, help="which N (default: 0)")
    parser.add_argument("--seconds", type=float, default=180.0, help="processor time for each file (default: 180)")
    chosen = parser.parse_args(arguments)
    sys.path.append(str(LIBRARY))  # behind the packages of the environment
    os.environ["CI"] = "1"  # property tests try the same examples every time
    for name in chosen.files or TARGETS:
        if not _try_file(name, chosen.sample, chosen.seed, chosen.seconds):
            return 1
    return 0


def _try_file(name: str, sample: int, seed: int, seconds: float) -> bool:
    path, tests = ROOT / "src" / "windlass" / name, TARGETS[name]
    source = path.read_text()
    module = "windlass." + name.removesuffix(".py").replace("/", ".")
    places = _places(source)
    random.Random(f"{name} {seed}").shuffle(places)
    shipped = _Trial(module, source, path, tests, limit_s=600.0)
    if shipped.is_noticed:
        _say(f"{name}: {', '.join(tests)} fail without any mutant")
        return False
    spent, survivors, num_tried = 0.0, [], 0
    for operator, mutant in islice(_mutants(source, places), sample):
        trial = _Trial(module, mutant, path, tests, limit_s=_SLOWEST * shipped.wall_s)
        num_tried, spent = num_tried + 1, spent + trial.processor_s
        if not trial.is_noticed:
            survivors.append((operator, mutant))
        if spent > seconds:
            break
    num_killed = num_tried - len(survivors)
    _say(f"| {name} | {len(places)} | {num_tried} | {num_killed} | {len(survivors)} | {spent:.0f} s |")
    for operator, mutant in survivors:
        _say(f"  {operator}\n" + "\n".join(f"    {line}" for line in _changes(source, mutant)))
    return True


def _places(source: str) -> list[tuple[str, int]]:
    """Every (operator, occurrence) that cosmic-ray finds in a file."""
    # lazy: a library that only this script needs
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast(source)))
    kinds = ((name, get_operator(name)) for name in operator_names())
    operators = [(name, kind()) for name, kind in kinds if name not in _EQUIVALENT and not kind.arguments()]
    counts = {name: sum(len(list(kind.mutation_positions(node))) for node in nodes) for name, kind in operators}
    return [(name, occurrence) for name in sorted(counts) for occurrence in range(counts[name])]


def _mutants(source: str, places: Iterable[tuple[str, int]]) -> Iterator[tuple[str, str]]:
    """(operator, source) of each place; without those that only change annotations, or are the same as another."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    seen = {"", _meaning(source)}
    for name, occurrence in places:
        mutant = mutate_code(source, get_operator(name)(), occurrence) or ""
        meaning = _meaning(mutant) if mutant else ""
        if meaning not in seen:
            seen.add(meaning)
            yield name.removeprefix("core/"), mutant


def _meaning(source: str) -> str:
    """A text that is equal for sources that do the same whatever is called; empty for one that is no Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


class _Trial:
    """A process that imports a source in place of a module and runs tests.

    Attributes:
        is_noticed: whether a test failed, or the tests did not end.
    """

    def __init__(self, module: str, source: str, path: Path, tests: Sequence[str], *, limit_s: float) -> None:
        import hypothesis  # noqa: F401  # lazy: loaded once for all trials
        import pytest

        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            quiet = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(quiet, number)
            sys.meta_path.insert(0, _Finder(module, source, path))
            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "not system and not soak", *tests])
            os._exit(min(int(code), 100))
        code = _wait(child, limit_s)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.is_noticed = code != 0
        self.wall_s = time.monotonic() - began
        self.processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _wait(child: int, limit_s: float) -> int:
    deadline = time.monotonic() + limit_s
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module, with a source of its own."""

    def __init__(self, module: str, source: str, path: Path) -> None:
        self._module, self._source, self._path = module, source, path

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """The spec of the module, and of no other."""
        if fullname != self._module:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        """Run the source."""
        exec(compile(self._source, str(self._path), "exec"), module.__dict__)  # noqa: S102


def _changes(source: str, mutant: str) -> list[str]:
    lines = difflib.unified_diff(source.splitlines(), mutant.splitlines(), lineterm="", n=0)
    return [line for line in lines if not line.startswith(("---", "+++"))]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
