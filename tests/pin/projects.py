"""Tiny wheels and projects made on the fly, locked by the real uv without any network."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

from windlass.pin.environment.uv_tool import find_uv

__all__ = ["BACKEND", "SETTINGS", "lock", "make_project", "make_wheel", "uv"]

# A build backend of the project's own, so that a build step needs no package index. It counts its builds.
BACKEND = """
import pathlib, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "built-1.0-py3-none-any.whl"
    source = pathlib.Path("code.txt").read_text()
    files = {
        "built/__init__.py": f"VALUE = {source!r}\\ndef main():\\n    print(VALUE)\\n",
        "built-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: built\\nVersion: 1.0\\n",
        "built-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "built-1.0.dist-info/entry_points.txt": "[console_scripts]\\nbuilt-tool = built:main\\n",
        "built-1.0.dist-info/RECORD": "",
    }
    pathlib.Path("written-by-build").touch()
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return name
"""

SETTINGS = '[tool.uv]\nno-index = true\nfind-links = ["wheels"]\n'


def make_wheel(
    folder: Path, name: str, version: str = "1.0", *, requires: Sequence[str] = (), module: str = ""
) -> Path:
    """A pure wheel of one module with a `VERSION` in it."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{name}.py": module or f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in files.items():
            archive.writestr(zipfile.ZipInfo(inner), text)
    return path


def make_project(folder: Path, *, dependencies: Sequence[str] = ("tiny",), more: str = "", name: str = "demo") -> Path:
    """A src-layout project with its wheels in `wheels`, not yet locked."""
    make_wheel(folder / "wheels", "tiny")
    make_wheel(folder / "wheels", "tiny", "2.0")
    make_wheel(folder / "wheels", "other", requires=["tiny"])
    (folder / "src" / name).mkdir(parents=True)
    (folder / "src" / name / "__init__.py").write_text("VALUE = 1\n")
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "0.1"\nrequires-python = ">=3.11"\ndependencies = {list(dependencies)!r}\n{more}{SETTINGS}'
    )
    return folder


def uv(folder: Path, *arguments: str) -> str:
    """Run uv in a folder; returns what it printed."""
    done = subprocess.run([find_uv(), *arguments], cwd=folder, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout


def lock(folder: Path) -> Path:
    """Make the project's uv.lock."""
    uv(folder, "lock", "--offline")
    return folder


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
