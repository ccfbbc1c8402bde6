"""Zipapp for jobs: the modules of this installation that run inside a job, in one file."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from windlass.core.files import write_new
from windlass.core.version import VERSION

__all__ = ["IN_JOB_LAYERS", "ensure_archive"]

IN_JOB_LAYERS = ("core", "record", "report", "supervise")
_MAIN = "import sys\nfrom windlass.supervise.main import main\nsys.exit(main(sys.argv[1:]))\n"
_INIT = (
    '"""The part of windlass that runs in a job; more of it, where it is installed, stays importable."""\n'
    "import os, sys\n"
    f'__version__ = "{VERSION}"\n'
    '__path__ += [p for p in (os.path.join(e, "windlass") for e in sys.path) if os.path.isfile(os.path.join(p, "__init__.py"))]\n'
)
_Source = tuple[str, str, int]
_EPOCH = (1980, 1, 1, 0, 0, 0)
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def ensure_archive(cache: Path) -> Path:
    """Create this installation's zipapp if it is missing.

    Return its path. Checking an existing one takes a stat per source file.

    It contains the sources and byte code for this Python; another Python (3.9 or newer) uses the sources.
    """
    if not os.path.isdir(_ROOT):  # already running from an archive: a windlass command inside a job
        return Path(_ROOT).parent
    files = _sources()
    content = (
        repr([(name, modified) for name, _, modified in files]) + f"{VERSION} {sys.implementation.cache_tag} {_INIT}"
    )
    target = cache / f"windlass-{hashlib.sha256(content.encode()).hexdigest()[:16]}.pyz"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        write_new(target, _build(files, cache))  # never replaced: containers may have it mounted
    return target


def _sources() -> list[_Source]:
    return sorted(source for layer in IN_JOB_LAYERS for source in _sources_in(os.path.join(_ROOT, layer), layer))


def _sources_in(folder: str, name: str) -> list[_Source]:
    found = []
    for entry in os.scandir(folder):  # a Path per file would take twice as long
        if entry.name.endswith(".py"):
            found.append((f"windlass/{name}/{entry.name}", entry.path, entry.stat().st_mtime_ns))
        elif entry.is_dir() and entry.name != "__pycache__":
            found += _sources_in(entry.path, f"{name}/{entry.name}")
    return found


def _build(files: list[_Source], cache: Path) -> bytes:
    import io  # lazy: only needed after an installation or upgrade
    import py_compile
    import zipfile

    content = io.BytesIO()
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    scratch = cache / f".compiled-{os.getpid()}-{os.urandom(4).hex()}"  # threads of one process may build at once
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in (("__main__.py", _MAIN), ("windlass/__init__.py", _INIT)):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), text)
        for name, path, _ in files:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), Path(path).read_bytes())
            py_compile.compile(path, cfile=str(scratch), dfile=name, doraise=True, invalidation_mode=unchecked)
            archive.writestr(zipfile.ZipInfo(name + "c", _EPOCH), scratch.read_bytes())
    scratch.unlink()
    return content.getvalue()
