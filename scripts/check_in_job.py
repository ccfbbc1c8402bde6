"""Hold the in-job layers to Python 3.9: its grammar, its standard library, and the real thing where there is one."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.tree import IN_JOB_LAYERS, ROOT, python_files

OLDEST = (3, 9)
VERMIN = ("--no-tips", "--violations", "--target=3.9-")


def main() -> int:
    """Exit 1 when a file needs a newer Python."""
    folders = [folder for layer in IN_JOB_LAYERS if (folder := ROOT / "src" / "windlass" / layer).is_dir()]
    files = [path for folder in folders for path in python_files(folder)]
    problems = [problem for path in files for problem in check_grammar(path)]
    for problem in problems:
        print(problem)
    found = subprocess.run(
        [Path(sys.executable).with_name("vermin"), *VERMIN, *map(str, folders)], capture_output=True, text=True
    )
    if found.returncode != 0:
        print(found.stdout.replace(f"{ROOT}/", "").strip())
    is_imported = check_with_python39(files)
    if problems or found.returncode != 0 or not is_imported:
        return 1
    print(f"{len(files)} files of {', '.join(IN_JOB_LAYERS)} keep to Python 3.9")
    return 0


def check_grammar(path: Path) -> list[str]:
    """What Python 3.9's grammar says against a file."""
    try:
        ast.parse(path.read_text(), filename=str(path), feature_version=OLDEST)
    except SyntaxError as error:
        return [f"{path.relative_to(ROOT)}:{error.lineno}: not Python 3.9: {error.msg}"]
    return []


def check_with_python39(files: list[Path]) -> bool:
    """Import every file with a real Python 3.9, where this machine has one."""
    python = os.environ.get("PYTHON39") or shutil.which("python3.9")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode != 0:
        print("no python3.9 here (PYTHON39 names one): grammar and standard library were checked by parser and vermin")
        return True
    source = ROOT / "src"
    names = sorted(
        {".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__") for path in files}
    )
    names = [name for name in names if not name.endswith("__main__")]
    program = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)"
    done = subprocess.run(
        [python, "-IB", "-c", f"import sys; sys.path.insert(0, {str(source)!r})\n{program}", *names],
        capture_output=True,
        text=True,
    )
    print(done.stderr.strip() if done.returncode else f"{len(names)} modules imported by {python}")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
