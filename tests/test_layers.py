"""The house of docs/architecture.md, held: imports go down, the job needs nothing, `--help` stays light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.tree import IN_JOB_LAYERS, ROOT, python_files

SOURCE = ROOT / "src"
HEAVY = {"fastapi", "kubernetes", "numpy", "optuna", "pydantic", "ray", "rich", "torch", "transformers"}

LOADED = "import json, sys; before = set(sys.modules); {}; print(json.dumps(sorted(set(sys.modules) - before)))"


def in_job_files() -> list[Path]:
    return [path for layer in IN_JOB_LAYERS for path in python_files(SOURCE / "windlass" / layer)]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def loaded_by(statement: str, *options: str) -> set[str]:
    """Top-level packages that a statement loads in a fresh interpreter."""
    command = [sys.executable, *options, "-c", LOADED.format(statement)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a file imports, at its top or lazily."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.lineno, node.module or ""


def test_import_linter_contracts_hold() -> None:
    done = subprocess.run([Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("path", in_job_files(), ids=module_name)
def test_in_job_files_import_the_standard_library_and_each_other_only(path: Path) -> None:
    allowed = sys.stdlib_module_names | {"windlass"}
    strangers = [f"{line}: {name}" for line, name in imports_of(path) if name.partition(".")[0] not in allowed]
    others = [
        f"{line}: {name}"
        for line, name in imports_of(path)
        if name.partition(".")[0] == "windlass" and name.split(".")[1:2] not in [[layer] for layer in IN_JOB_LAYERS]
    ]
    assert strangers + others == []


@pytest.mark.parametrize("layer", IN_JOB_LAYERS)
def test_in_job_layers_load_the_standard_library_only(layer: str) -> None:
    names = [module_name(path) for path in python_files(SOURCE / "windlass" / layer) if path.name != "__main__.py"]
    loaded = loaded_by(f"import {', '.join(names)}")
    assert loaded - sys.stdlib_module_names - {"windlass"} == set()


@pytest.mark.parametrize("layer", IN_JOB_LAYERS)
def test_in_job_layers_load_no_layer_above_them(layer: str) -> None:
    command = f"import windlass.{layer}; names = [n for n in sys.modules if n.startswith('windlass.')]"
    program = f"import sys, json; {command}; print(json.dumps(names))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {name.split(".")[1] for name in json.loads(done.stdout)} <= set(IN_JOB_LAYERS)


def test_importing_windlass_is_light() -> None:
    assert loaded_by("import windlass") - sys.stdlib_module_names == {"windlass"}


def test_help_loads_nothing_heavy() -> None:
    statement = "import windlass.cli\ntry:\n  windlass.cli.main(['--help'])\nexcept SystemExit: pass\n"
    program = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout.splitlines()[-1])
    assert {name.partition(".")[0] for name in modules} & HEAVY == set()
    assert len(modules) <= 250
