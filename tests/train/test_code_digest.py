"""What the digest of a function's code covers, by edits of files that must change it, or must not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.train.reference import code_digest

_FILES = {
    "rewards.py": "import helper\nfrom inner import deep\n\ndef reward(a, b):\n    import late\n    return helper.half() + deep.X\n",
    "helper.py": "def half():\n    return 0.5\n",
    "late.py": "Y = 1\n",
    "inner/__init__.py": "",
    "inner/deep.py": "from . import more\nX = more.Z\n",
    "inner/more.py": "Z = 2\n",
    "other.py": "W = 3\n",
}


def digest(folder: Path) -> str:
    """In a process of its own, because a module is imported only once."""
    line = "from windlass.train.reference import *; print(code_digest(load_reference('rewards.py:reward')))"
    return subprocess.check_output([sys.executable, "-c", line], cwd=folder, text=True).strip()


def written(folder: Path, **edited: str) -> Path:
    for name, text in _FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + edited.get(name.replace("/", "_").removesuffix(".py"), ""))
    return folder


@pytest.mark.parametrize(
    ("name", "is_covered"),
    [("rewards", True), ("helper", True), ("late", True), ("inner_deep", True), ("inner_more", True), ("other", False)],
)
def test_an_edit_of_a_file_that_is_imported_changes_the_digest(tmp_path: Path, name: str, is_covered: bool) -> None:
    before = digest(written(tmp_path / "code"))
    after = digest(written(tmp_path / "code", **{name: "# edited\n"}))
    assert (after != before) == is_covered


def test_the_folder_is_not_part_of_the_digest(tmp_path: Path) -> None:
    before = digest(written(tmp_path / "code"))
    shutil.move(tmp_path / "code", tmp_path / "moved")
    assert digest(tmp_path / "moved") == before


def test_files_of_a_package_are_found_by_its_name() -> None:
    """The verifier of code depends on the sandbox, which it imports as `windlass.post.rewards.sandbox`."""
    from windlass.post.rewards import registry
    from windlass.train import reference

    file = Path(registry.__file__)
    found = reference._imported_beside(file.read_bytes(), file, file.parent, "windlass.post.rewards")
    assert {"code.py", "protocol.py", "maths.py"} <= {each.name for each in found}


def test_functions_of_one_file_differ_and_an_instance_is_its_class() -> None:
    class Reward:
        def __call__(self, answer: object, truth: object) -> float:
            return 0.0

    assert code_digest(digest) != code_digest(written)
    assert code_digest(Reward()) == code_digest(Reward)


def test_a_function_without_a_file_is_an_error() -> None:
    scope: dict[str, object] = {"__name__": "typed"}
    exec(compile("def typed(a, b): return 0.0", "<typed>", "exec"), scope)
    with pytest.raises((OSError, TypeError)):
        code_digest(scope["typed"])  # type: ignore[arg-type]
