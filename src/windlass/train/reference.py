"""Import of Python objects by name, `module:name` or `file.py:name`, as recipes and settings use them."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from windlass.core.errors import NotFoundError, SourcePlace, UsageError, WindlassError
from windlass.core.names import nearest

__all__ = ["FILE_MODULE", "code_digest", "load_module", "load_reference", "place_of_error"]


FILE_MODULE = "windlass_file_"
"""Prefix of the module names of files."""


def load_reference(text: str) -> object:
    """Return the object named `module:name` or `file.py:name`; a file is executed only once per process.

    Raises:
        NotFoundError: there is no such file, module or name.
        UsageError: the text has no colon, or the module fails while it is imported.
    """
    module_text, colon, name = text.rpartition(":")
    if not colon or not name:
        raise UsageError(
            f"invalid Python name `{text}`", hint="write `module:name` or `file.py:name`", code="invalid-value"
        )
    found: object = load_module(module_text)
    for part in name.split("."):
        if not hasattr(found, part):
            close = (
                nearest(part, [word for word in vars(found) if not word.startswith("_")]) if _has_vars(found) else ""
            )
            hint = f"did you mean `{module_text}:{close}`?" if close else "check the name after the colon"
            raise NotFoundError(f"`{module_text}` has no `{part}`", hint=hint, code="module-not-found")
        found = getattr(found, part)
    return found


def load_module(text: str) -> ModuleType:
    """Import a module by its dotted name or `.py` file; the working directory is on the path."""
    try:
        if text.endswith(".py"):
            return _of_file(Path(text))
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(text)
    except WindlassError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (text == error.name or text.startswith(f"{error.name}.")):
            hint = "check the name; modules are searched in the working directory and in the environment"
            raise NotFoundError(f"no module `{text}`", hint=hint, code="module-not-found") from error
        raise _failed(text, error) from error
    except (Exception, SystemExit) as error:  # a script without `if __name__` may exit, which would look like success
        raise _failed(text, error) from error


def _failed(text: str, error: Exception | SystemExit) -> UsageError:
    kind = f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0]
    place = place_of_error(error, text)
    where = f" ({place.source}:{place.line})" if place.line else ""
    hint = "-v shows the traceback"
    if isinstance(error, ModuleNotFoundError):
        hint = f"install `{error.name}` in the training environment, or run this where it is installed"
    return UsageError(f"cannot import `{text}`: {kind}{where}", hint=hint, code="user-code-failed")


def code_digest(function: Callable[..., object]) -> str:
    """Return the digest of the code behind a function: its name, its file, and the files beside it that those import.

    Files in the folder of the function's module and below count, imports within functions included; their place does
    not, so moved code has the same digest. Installed packages and files elsewhere are not covered.

    Raises:
        OSError: the function is of no file, such as one typed into a shell.
    """
    own = inspect.unwrap(function)
    if not inspect.isroutine(own) and not inspect.isclass(own):
        own = type(own)
    file = Path(inspect.getsourcefile(own) or inspect.getfile(own)).resolve()
    package = "" if own.__module__.startswith(FILE_MODULE) else own.__module__.rpartition(".")[0]
    sources, todo = {}, [file]
    while todo:
        path = todo.pop()
        if path in sources:
            continue
        sources[path] = path.read_bytes()
        todo += _imported_beside(sources[path], path, file.parent, package)
    digest = hashlib.sha256(own.__qualname__.encode())
    for path in sorted(sources):
        digest.update(str(path.relative_to(file.parent)).encode() + hashlib.sha256(sources[path]).digest())
    return digest.hexdigest()


def _imported_beside(source: bytes, path: Path, root: Path, package: str) -> Iterator[Path]:
    """Yield the files at or below a folder that a source imports; `package` is the folder's name in imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names, folder = [each.name for each in node.names], root
        elif isinstance(node, ast.ImportFrom):
            stem = node.module or ""
            names = [stem, *(f"{stem}.{each.name}".lstrip(".") for each in node.names)]
            folder = path.parents[node.level - 1] if node.level else root
        else:
            continue
        if folder == root or root in folder.parents:
            for name in names:
                inner = name.removeprefix(f"{package}.") if package and folder == root else name
                place = folder.joinpath(*inner.split("."))
                yield from (each for each in (place.with_suffix(".py"), place / "__init__.py") if each.is_file())


def place_of_error(error: BaseException, source: str) -> SourcePlace:
    """Return the innermost line of the user's code in a traceback, or `source` alone if there is none."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return SourcePlace(error.filename, error.lineno)
    found, trace = SourcePlace(source), error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        module = str(trace.tb_frame.f_globals.get("__name__", "")).split(".")[0]
        if module not in ("windlass", "importlib", "torch") and not name.startswith("<"):
            found = SourcePlace(name, trace.tb_lineno)
        trace = trace.tb_next
    return found


def _of_file(path: Path) -> ModuleType:
    """Import a file as a module; it can import files beside it, as with `python file.py`."""
    if not path.is_file():
        near = nearest(path.name, [other.name for other in path.parent.glob("*.py")] if path.parent.is_dir() else [])
        hint = f"did you mean `{path.with_name(near)}`?" if near else "check the path"
        raise NotFoundError(f"no such file: `{path}`", hint=hint, code="file-not-found")
    full = path.resolve()
    name = FILE_MODULE + "".join(letter if letter.isalnum() else "_" for letter in str(full))
    if name in sys.modules:
        return sys.modules[name]
    if str(full.parent) not in sys.path:
        sys.path.insert(0, str(full.parent))
    loader = _SourceLoader(name, str(full))
    spec = importlib.util.spec_from_file_location(name, full, loader=loader)
    assert spec is not None  # there is a loader
    module = importlib.util.module_from_spec(spec)
    # Before execution: its dataclasses look up their module.
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class _SourceLoader(SourceFileLoader):
    """Loader that compiles the file again each time.

    Python takes bytecode for current if size and second of the last change are those of the source, so an edit can be
    recorded as new code while the old one runs.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file as it is now."""
        return self.source_to_code(self.get_data(self.path), self.path)


def _has_vars(value: object) -> bool:
    return hasattr(value, "__dict__")
