"""Resolution of a recipe: find it, call it, apply overrides, check it, and record the origin of each value."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from windlass.config.encode import to_data
from windlass.config.loading import LoadedConfig, from_data, load_config, raise_any
from windlass.config.override import COMMAND_LINE
from windlass.config.path import join_path
from windlass.config.union import DEFAULT
from windlass.config.value import with_overrides
from windlass.config.yaml_reader.parser import decode_text
from windlass.core.errors import NotFoundError, Problem, SourcePlace, SpecError, UsageError, WindlassError
from windlass.core.json_text import decode_json
from windlass.core.names import nearest
from windlass.train.recipe import Recipe
from windlass.train.recipes.shipped import SHIPPED
from windlass.train.reference import FILE_MODULE, load_module, load_reference, place_of_error
from windlass.train.targets.parts import code_of, complete

__all__ = ["RECORD_SCHEMA", "ResolvedRecipe", "class_name", "read_recipe", "resolve"]

RECORD_SCHEMA = "windlass.recipe/1"
_DATA_ENDINGS = (".yaml", ".yml", ".json")
_RECORD = "config.json"
"""File of a checkpoint with the recipe that made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRecipe:
    """Checked recipe with the origin of each value.

    Attributes:
        source: origin of the recipe: a shipped name, `file.py:function`, `module:function`, a file.
        overrides: overrides as written.
        origins: dotted path of every field to its origin: `source` (with a line where there is one), `default` or
            `command line`.
    """

    recipe: Recipe
    source: str
    overrides: tuple[str, ...] = ()
    origins: Mapping[str, str]

    def record(self) -> dict[str, object]:
        """Return the whole recipe with defaults and the origin of each field, JSON-safe; `resolve` can read it."""
        return {
            "schema": RECORD_SCHEMA,
            "source": self.source,
            "overrides": list(self.overrides),
            **({} if type(self.recipe) is Recipe else {"class": class_name(type(self.recipe))}),
            "recipe": to_data(self.recipe, keep_defaults=True),
            "origins": dict(self.origins),
            **({"code": code} if (code := code_of(self.recipe)) else {}),
        }


def resolve(name: str, overrides: Sequence[str] = ()) -> ResolvedRecipe:
    """Resolve a recipe by name, and apply overrides.

    Args:
        name: a shipped recipe, `file.py`, `file.py:function`, `module:function`, a YAML or JSON file, a checkpoint or its
            `config.json`; files and checkpoints also by an address of fsspec.
        overrides: `a.b=value`, `--a.b=value`, `--a.b` (true) or `~a.b` (remove), later ones win.

    Raises:
        SpecError: the recipe or an override is invalid; reports all problems.
        NotFoundError, UsageError: there is no such recipe, or its function fails.

    Code that the recipe names with `kind: python` is imported, and its arguments are checked against its signature.
    """
    made, source = read_recipe(name)
    loaded: LoadedConfig[Recipe]
    if isinstance(made, type):
        loaded = load_config(made, "{}", source=source, overrides=overrides)
    elif isinstance(made, str):
        cls, made = _class_of_file(made, source)
        loaded = load_config(cls, made, source=source, overrides=overrides)
    else:
        yielding = (DEFAULT, source) if name in SHIPPED else (DEFAULT,)
        loaded = with_overrides(made, overrides, source=source, yielding=yielding)
    recipe, problems, places = complete(loaded.value, loaded.origins)
    raise_any(problems)
    whole = LoadedConfig(recipe, {**loaded.origins, **places})
    return ResolvedRecipe(
        recipe=recipe, source=source, overrides=tuple(overrides), origins=dict(_origins(whole, source))
    )


def read_recipe(name: str) -> tuple[Recipe | type[Recipe] | str, str]:
    """Return the unchecked recipe to which a name refers, and its source.

    It is the value returned by Python code, a custom recipe class, or the text of a file.
    """
    if name in SHIPPED:
        shipped = SHIPPED[name]
        return _called(load_module(shipped.module), shipped.function, name), name
    if "://" in name:
        return _of_url(name)
    if name.endswith(_DATA_ENDINGS) or (":" not in name and Path(name).is_dir()):
        return _of_file(Path(name))
    if name.endswith(".py"):
        module = load_module(name)
        function = _only_function(module, name)
        return _called(module, function, f"{name}:{function}"), f"{name}:{function}"
    if ":" in name:
        found = load_reference(name)
        return _result(found, name), name
    raise _unknown(name)


_CLASS = re.compile(r"^class:[ \t]*(\S+)[ \t]*(#.*)?$", re.MULTILINE)


def _class_of_file(text: str, source: str) -> tuple[type[Recipe], str]:
    """Return the class that a file's line `class: module:Class` names, and the text without it; lines keep their number."""
    found = _CLASS.search(text)
    if found is None:
        return Recipe, text
    return _recipe_class(found[1], source), text[: found.start()] + text[found.end() :]


def class_name(cls: type[Recipe]) -> str:
    """Return the name by which a recipe class can be imported: `file.py:Class` or `module:Class`."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    home = str(file) if cls.__module__.startswith(FILE_MODULE) and file else cls.__module__
    return f"{home}:{cls.__qualname__}"


def _of_file(path: Path) -> tuple[Recipe | str, str]:
    """Return the text of a recipe file or, if the file is a record, the recipe in it."""
    path = path / _RECORD if path.is_dir() else path
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise _file_missing(path) from error
    except OSError as error:
        message = f"cannot read `{path}`: {error.strerror}"
        raise UsageError(message, hint="check the path", code="file-unreadable") from error
    return _read(content, str(path))


def _of_url(url: str) -> tuple[Recipe | str, str]:
    """Return the text or record of a file or checkpoint at an fsspec URL."""
    from windlass.train.checkpoint.files import open_files  # lazy: buckets only

    folder, _, name = url.rstrip("/").rpartition("/")
    if not name.endswith(_DATA_ENDINGS):
        folder, name = url.rstrip("/"), _RECORD
    try:
        content = open_files(folder).read(name)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"no such file: `{folder}/{name}`", hint="check the address", code="file-not-found"
        ) from error
    return _read(content, f"{folder}/{name}")


def _read(content: bytes, source: str) -> tuple[Recipe | str, str]:
    text = decode_text(content, source=source)
    record = _record_in(text, source) if source.endswith(".json") else None
    if record is None:
        return text, source
    data, cls = record
    return from_data(_recipe_class(cls, source) if cls else Recipe, data, source=source), source


def _recipe_class(name: str, source: str) -> type[Recipe]:
    """Return the custom recipe class named in a record."""
    found = load_reference(name)
    if isinstance(found, type) and issubclass(found, Recipe):
        return found
    hint = "it was one when it was recorded: `class Mine(train.Recipe)`"
    raise UsageError(f"`{source}` has the type `{name}`, which is not a recipe class", hint=hint, code="recipe-wrong")


def _file_missing(path: Path) -> NotFoundError:
    if path.name == _RECORD and path.parent.is_dir():
        hint = "a checkpoint's folder has one; pass a recipe or a file"
    else:
        names = [other.name for other in path.parent.glob("*") if other.suffix == path.suffix]
        near = nearest(path.name, names)
        hint = f"did you mean `{path.with_name(near)}`?" if near else "check the path"
    return NotFoundError(f"no such file: `{path}`", hint=hint, code="file-not-found")


def _record_in(text: str, source: str) -> tuple[object, str] | None:
    """Return the recipe in a record and its custom class, if any; return None if the text is not a record."""
    try:
        data = decode_json(text)
    except (ValueError, RecursionError):
        return None  # the settings reader reports the problem and its place
    if not isinstance(data, dict) or "data" in data:
        return None
    if str(data.get("schema", "")).startswith("windlass.model/"):
        hint = f"pass it to a recipe: `checkpoint.load.path={Path(source).parent}`"
        raise UsageError(f"`{source}` describes a model, not a recipe", hint=hint, code="recipe-wrong")
    found: object = data.get("recipe")
    return None if found is None else (found, str(data.get("class", "")))


def _only_function(module: ModuleType, name: str) -> str:
    """Return the name of a file's recipe function: `recipe`, or the only one annotated to return a Recipe."""
    own = {
        key: value
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not key.startswith("_")
    }
    if "recipe" in own:
        return "recipe"
    typed = [key for key, value in own.items() if "Recipe" in str(value.__annotations__.get("return", ""))]
    if len(typed) == 1:
        return typed[0]
    if not typed:
        hint = "define `def recipe() -> train.Recipe:` in it"
        raise UsageError(f"`{name}` has no function that returns a recipe", hint=hint, code="recipe-not-found")
    hint = f"name one: `{name}:{typed[0]}`"
    raise UsageError(f"`{name}` has several recipes: {', '.join(typed)}", hint=hint, code="recipe-wrong")


def _called(module: ModuleType, function: str, source: str) -> Recipe | type[Recipe]:
    return _result(getattr(module, function), source)


def _result(found: object, source: str) -> Recipe | type[Recipe]:
    """Return the recipe itself, the recipe that a function returns, or a recipe class unchanged."""
    if isinstance(found, Recipe):
        return found
    if isinstance(found, type) and issubclass(found, Recipe):
        if "__dataclass_fields__" in vars(found):
            return found
        hint = "write `@dataclass(frozen=True, kw_only=True)` above it"
        raise UsageError(f"the recipe class `{source}` is not a dataclass", hint=hint, code="recipe-wrong")
    if not callable(found):
        hint = "a recipe is a function without arguments that returns a `windlass.train.Recipe`"
        raise UsageError(f"`{source}` is a {type(found).__name__}", hint=hint, code="recipe-wrong")
    made = _call(found, source)
    if isinstance(made, Recipe):
        return made
    hint = "end it with `return train.Recipe(...)`"
    raise UsageError(f"`{source}` returned a {type(made).__name__}, not a Recipe", hint=hint, code="recipe-wrong")


def _call(function: Callable[..., object], source: str) -> object:
    try:
        return function()
    except WindlassError:
        raise
    except Exception as error:
        place = place_of_error(error, source)
        kind = f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0]
        raise SpecError(
            [Problem(f"the recipe failed: {kind}", "user-code-failed", place, "-v shows the traceback")]
        ) from error


def _unknown(name: str) -> NotFoundError:
    close = nearest(name, SHIPPED) or nearest(name.replace("_", "-"), SHIPPED)
    if close:
        hint = f"did you mean `{close}`?"
    elif Path(f"{name}.py").is_file():
        hint = f"did you mean `{name}.py`?"
    else:
        hint = f"recipes: {', '.join(SHIPPED)}; or pass `file.py`, `file.py:function`, `module:function`, a YAML file"
    return NotFoundError(f"unknown recipe `{name}`", hint=hint, code="recipe-not-found")


def _origins(loaded: LoadedConfig[Recipe], source: str) -> Iterator[tuple[str, str]]:
    """Yield (path, origin) of every field, in order; a list of scalars is one field."""

    def walk(data: object, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        if isinstance(data, Mapping) and data:
            for key, value in data.items():
                yield from walk(value, (*path, key))
        elif isinstance(data, list) and any(isinstance(item, Mapping) for item in data):
            for index, value in enumerate(data):
                yield from walk(value, (*path, str(index)))
        else:
            name = join_path(path)
            places = [loaded.origins.get(name)]
            if isinstance(data, list):
                places += [loaded.origins.get(f"{name}.{index}") for index in range(len(data))]
            yield name, _origin([place for place in places if place is not None])

    yield from walk(to_data(loaded.value, keep_defaults=True), ())


def _origin(places: Sequence[SourcePlace]) -> str:
    """Return the origin of a field: its override if there is one, else its source."""
    if not places:
        return DEFAULT
    place = next((place for place in places if place.source == COMMAND_LINE), places[0])
    return f"{place.source}:{place.line}" if place.line else place.source
