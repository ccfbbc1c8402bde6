"""Version, platform and installed packages of a Python interpreter, as the interpreter itself reports them."""

from __future__ import annotations

import os
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.json_text import decode_json
from windlass.core.process import run

__all__ = ["QUESTION", "Interpreter", "ask_interpreter", "find_interpreter", "read_answer"]

QUESTION = r"""
import json, platform, sys, sysconfig
facts = {"version": platform.python_version(), "packages": [],
         "tag": sys.implementation.cache_tag or "", "abiflags": getattr(sys, "abiflags", ""),
         "platform": sysconfig.get_platform() + "-" + "".join(platform.libc_ver())}
if len(sys.argv) > 1:
    from importlib.metadata import distributions
    seen = {}
    for each in distributions():
        name = (each.metadata["Name"] or "").lower().replace("_", "-").replace(".", "-")
        if name and name not in seen:
            direct = each.read_text("direct_url.json")
            found = json.loads(direct) if direct else {}
            commit = found.get("vcs_info", {}).get("commit_id", "")
            url = found.get("url", "").split("//", 1)
            url = url[0] + "//" + url[-1].split("?")[0].rsplit("@", 1)[-1] if len(url) > 1 else ""
            origin = " @ " + url + ("#" + commit if commit else "") if url else ""
            seen[name] = name + "==" + (each.version or "") + origin
    facts["packages"] = sorted(seen.values())
print(json.dumps(facts))
"""
"""Program that an interpreter runs to describe itself and, with an argument, its packages. Also runs on old Pythons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """Python interpreter: its path, version (`3.11.7`), tag (`cpython-311`), platform, and packages if requested."""

    path: str
    version: str
    tag: str
    platform: str
    packages: tuple[str, ...] = ()


def find_interpreter(place: Path) -> Path:
    """Return the path of the interpreter at `place`: a program, or the folder of a virtual environment or prefix."""
    if place.is_dir():
        for name in ("bin/python", "bin/python3", "python"):
            if (place / name).exists():
                return place / name
        raise NotFoundError(
            f"no Python in {place}: neither bin/python nor bin/python3",
            hint="`python:` must name a program or a virtual environment",
            code="python-unusable",
        )
    if place.is_symlink() and not place.exists():
        raise PreconditionError(
            f"{place} points at {os.readlink(place)}, which does not exist",
            hint="create that virtual environment again",
            code="python-unusable",
        )
    if not place.exists():
        raise NotFoundError(
            f"no such Python: {place}",
            hint="`python:` must name a program or a virtual environment",
            code="python-unusable",
        )
    if not os.access(place, os.X_OK):
        raise PreconditionError(f"{place} cannot be executed", hint=f"chmod +x {place}", code="python-unusable")
    return place


def ask_interpreter(path: Path, *, with_packages: bool = False) -> Interpreter:
    """Run an interpreter once to let it describe itself; takes about 20 ms, more with many packages."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")
    }
    try:
        done = run(
            [str(path), "-c", QUESTION, *(["packages"] if with_packages else [])],
            cwd=Path("/"),
            env=environment,
            timeout_s=120,
        )
    except PreconditionError as error:
        reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error.message
        raise PreconditionError(
            f"{path} is not a program: {reason}", hint="name a Python interpreter", code="python-unusable"
        ) from error
    return read_answer(str(path), done.code, done.stdout, done.stderr)


def read_answer(path: str, code: int, out: str, err: str) -> Interpreter:
    """Parse what the interpreter at `path` printed for `QUESTION`."""
    try:
        facts = decode_json(out)
        return Interpreter(
            path=path, version=facts["version"], tag=facts["tag"] + facts["abiflags"], platform=facts["platform"],
            packages=tuple(facts["packages"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        last = (err or out).strip().rpartition("\n")[2]
        raise PreconditionError(
            f"{path} is not a working Python >= 3.9 (code {code}): {last or 'no output'}",
            hint="set it to a working Python interpreter or virtual environment",
            code="python-unusable",
        ) from error
