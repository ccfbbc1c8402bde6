"""Checks and calls of the custom code that a recipe names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

from windlass.config.decode import DocumentDecoder
from windlass.config.document import MappingEntry, MappingNode, Node, SequenceNode, node_of_data
from windlass.config.field_types import fields_of
from windlass.config.path import join_path
from windlass.core.errors import Problem, SourcePlace, SpecError, WindlassError
from windlass.train.reference import place_of_error
from windlass.train.targets.config import TargetConfig
from windlass.train.targets.signature import Signature, read_signature

__all__ = ["OFFERS", "Checked", "call_target", "check_target", "whole_target"]

OFFERS: Mapping[str, tuple[str, ...]] = {
    "callback": (),
    "loader": (
        *("share", "world", "seed", "recipe"),
        *("batch_tokens", "sequence_length", "microbatch_tokens", "vocab_size"),
    ),
    "model": ("seed", "recipe"),
    "train_module": ("model", "optimizer", "world", "seed", "loss", "max_grad_norm", "skip", "recipe"),
    "optim": ("params", "lr", "weight_decay", "model"),
    "schedule": ("step", "tokens", "progress", "duration", "recipe"),
    "source": (),
}
"""Arguments that windlass passes to a target of each part, if its signature has a parameter of that name."""


class Checked:
    """Arguments of a target after checking.

    Attributes:
        problems: problems with the arguments; empty if they are valid.
        args: all arguments as plain data, including defaults.
        values: values to call the target with.
        origins: path of each written argument to its place.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.args: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.origins: dict[str, SourcePlace] = {}
        self.signature: Signature | None = None


def check_target(
    config: TargetConfig, part: str, where: str, origins: Mapping[str, SourcePlace] | None = None
) -> Checked:
    """Import a target and check the `args` in the recipe against its signature, without calling it.

    Args:
        part: a key of `OFFERS`.
        where: path of the part in the recipe, for errors.
        origins: place of each written value by path.
    """
    found = Checked()
    places = origins or {}
    here = places.get(f"{where}.target") or places.get(where)
    try:
        signature = read_signature(config.target, OFFERS[part])
    except WindlassError as error:
        for problem in error.problems:
            message = f"{where}.target: {problem.message}"
            found.problems.append(Problem(message, problem.code, here or problem.place, problem.hint))
        return found
    found.signature = signature
    known, extra = dict(config.args), dict[str, Any]()
    for name in config.args:
        if name in signature.given:
            place = places.get(join_path((*where.split("."), "args", name)), here)
            message = f"`{where}.args.{name}` is passed to {config.target} by windlass"
            found.problems.append(Problem(message, "unknown-key", place, "remove it"))
            known.pop(name)
    fields = fields_of(signature.schema)
    if signature.takes_any:
        extra = {name: known.pop(name) for name in list(known) if name not in fields}
    path = (*where.split("."), "args")
    node = _placed(node_of_data(known, ""), path, places, here or SourcePlace(where))
    decoder = DocumentDecoder(signature.schema)
    made = decoder.decode(node, path)
    found.problems += [_of_target(problem, config) for problem in decoder.problems]
    found.origins = {name: place for name, place in decoder.origins.items() if place.source}
    if not found.problems:
        found.args = {**signature.written(made), **extra}
        found.values = {**{name: getattr(made, name) for name in fields}, **extra}
    return found


def _of_target(problem: Problem, config: TargetConfig) -> Problem:
    """Add the target's name to the message of a problem."""
    if problem.code in ("unknown-key", "missing-key"):
        return Problem(f"{problem.message}, of {config.target}", problem.code, problem.place, problem.hint)
    return problem


def _placed(node: Node, path: tuple[str, ...], origins: Mapping[str, SourcePlace], outer: SourcePlace) -> Node:
    """Return the tree with the place at which each of its parts was written."""
    place = origins.get(join_path(path), outer)
    if isinstance(node, MappingNode):
        entries = tuple(_entry(entry, (*path, entry.key), origins, place) for entry in node.entries)
        return MappingNode(entries, place)
    if isinstance(node, SequenceNode):
        items = (_placed(item, (*path, str(number)), origins, place) for number, item in enumerate(node.items))
        return SequenceNode(tuple(items), place)
    return type(node)(node.value, node.text, place)


def _entry(
    entry: MappingEntry, path: tuple[str, ...], origins: Mapping[str, SourcePlace], outer: SourcePlace
) -> MappingEntry:
    node = _placed(entry.node, path, origins, outer)
    return MappingEntry(entry.key, node.place, node)


def whole_target(config: TargetConfig, part: str, where: str) -> Callable[..., Any]:
    """Return the target with its own arguments bound, to be called with those that windlass passes.

    Raises:
        SpecError: it cannot be imported, or its arguments are invalid.
    """
    checked = check_target(config, part, where)
    if checked.problems or checked.signature is None:
        raise SpecError(checked.problems)
    signature = checked.signature

    def call(**offered: object) -> object:
        given = {name: offered[name] for name in signature.given if name in offered}
        try:
            return signature.call(**given, **checked.values)
        except WindlassError:
            raise
        except Exception as error:
            kind = f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0]
            message = f"{where}: {config.target} failed: {kind}"
            place = place_of_error(error, config.target)
            raise SpecError([Problem(message, "user-code-failed", place, "-v shows the traceback")]) from error

    return call


def call_target(config: TargetConfig, part: str, where: str, **offered: object) -> object:
    """Call the target and return the result; if that is a dataclass with a method `build`, build it.

    Raises:
        SpecError: it cannot be imported or fails; the message names the line of the user's code.
    """
    made = whole_target(config, part, where)(**offered)
    build = getattr(made, "build", None)
    if is_dataclass(made) and callable(build):
        return build()
    return made
