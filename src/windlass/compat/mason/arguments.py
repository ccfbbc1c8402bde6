"""Parser of a mason command line into options and commands; an error names the invalid word."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from windlass.compat.mason.flags import FLAGS, OWN, RETIRED, MasonFlag, Takes
from windlass.compat.mason.options import MasonOptions, OwnOptions
from windlass.compat.mason.values import CACHES, PRIORITIES
from windlass.core.dataclass import dataclass
from windlass.core.errors import UsageError
from windlass.core.names import nearest

__all__ = ["Arguments", "read_arguments"]

_BY_NAME = {flag.name: flag for flag in (*FLAGS, *RETIRED, *OWN)}
_SHORTENED = tuple(flag.name for flag in FLAGS if flag.may_be_cut)
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
_EXAMPLE = "for example `windlass mason --cluster ai2/jupiter --gpus 8 -- python train.py`"
_LISTS = ("cluster", "hostname", "beaker_datasets", "extra_weka_buckets")
_ELSEWHERE = frozenset(
    [
        "overrides",
        "paths",
        "env_uv",
        "env_python",
        "env_image",
        "name",
        "is_split",
        "is_snapshot",
        "is_allow_dirty",
        "is_best_effort",
        "is_detached",
    ]
)
_BEFORE_COMMAND = ("--on", "--emit")
_MAX_SHOWN = 80
_EMITS = ("spec", "beaker", "plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Parsed command line: mason's options, windlass's options, the commands, and notes."""

    options: MasonOptions
    own: OwnOptions
    commands: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Found:
    """Values parsed so far by flag, how often each flag was given, and notes."""

    by_flag: dict[str, list[Any]] = field(default_factory=dict)
    num_times: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a note unless it was already added."""
        if text not in self.notes:
            self.notes.append(text)


def read_arguments(argv: Sequence[str], *, environ: Mapping[str, str]) -> Arguments:
    """Parse a command line as mason would, but without silently losing words.

    Args:
        argv: the words after `windlass mason`.
        environ: variables; RUN_NAME is the default description.

    Raises:
        UsageError: no `--`, no command, an unknown option, or a misplaced word or value, which it names.
    """
    _check_text(argv)
    if "--" not in argv:
        hint = f"write ` -- ` before the command, {_EXAMPLE}"
        raise UsageError(
            "`--` is missing: it separates mason's options from the command", hint=hint, code="mason-usage"
        )
    at = list(argv).index("--")
    found = _read_flags(list(argv[:at]))
    commands = _split(argv[at + 1 :])
    if not all("".join(command).strip() for command in commands) or not commands:
        raise UsageError("no command after `--`", hint=_EXAMPLE, code="mason-usage")
    _check_commands(commands)
    options = _options(found, environ)
    return Arguments(options=options, own=_own(found), commands=commands, notes=tuple(found.notes))


def _check_text(argv: Sequence[str]) -> None:
    """Raise for words that are not valid UTF-8, which a JSON spec cannot contain."""
    for word in argv:
        try:
            word.encode()
        except UnicodeEncodeError:
            message = f"{os.fsencode(word)!r} is not UTF-8, which a specification requires"
            raise UsageError(message, hint="use UTF-8, or rename the file", code="invalid-value") from None


def _read_flags(words: list[str]) -> _Found:
    found, position = _Found(), 0
    while position < len(words):
        word = words[position]
        position += 1
        if not _is_flag(word):
            raise _stray(word, words[: position - 1])
        flag, given = _flag(word)
        if flag.note:
            found.note(flag.note)
        if given is None:
            end = position
            while end < len(words) and not _is_flag(words[end]) and not _is_full(flag, end - position):
                end += 1
            texts, position = words[position:end], end
        else:
            texts = [given]
        after = words[position] if given is None and position < len(words) else ""
        _keep(found, flag, texts, has_equals=given is not None, after=after)
    return found


def _is_flag(word: str) -> bool:
    """Return True if argparse takes a word for an option rather than a value, in a parser without numeric options."""
    if not word.startswith("-") or word == "-":
        return False
    if word.partition("=")[0] in _BY_NAME or _matches(word.partition("=")[0]):
        return True
    return not _NEGATIVE.fullmatch(word) and " " not in word


def _is_full(flag: MasonFlag, count: int) -> bool:
    limit = {Takes.NONE: 0, Takes.ONE: 1, Takes.EACH: 1}.get(flag.takes)
    return limit is not None and count >= limit


def _matches(name: str) -> list[str]:
    return [full for full in _SHORTENED if name.startswith("--") and len(name) > 2 and full.startswith(name)]


def _flag(word: str) -> tuple[MasonFlag, str | None]:
    """Return the option that a word names, in full or abbreviated, and the value after its `=`."""
    name, equals, given = word.partition("=")
    value = given if equals else None
    if name in _BY_NAME:
        return _BY_NAME[name], value
    matches = _matches(name)
    if len(matches) == 1:
        return _BY_NAME[matches[0]], value
    if matches:
        message, hint = f"`{name}` may be {_listed(matches)}", "write it in full"
    else:
        close = nearest(name, _BY_NAME) or nearest(
            name.replace("-", "_"), [flag.replace("-", "_") for flag in _BY_NAME]
        )
        message = f"`{name}` is not an option of mason"
        hint = (
            f"did you mean `{close}`?"
            if close
            else "`windlass mason --help` lists the options; the command's own options go after ` -- `"
        )
    raise UsageError(message, hint=hint, code="unknown-option")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:-1]) + f" or `{names[-1]}`"


def _stray(word: str, before: Sequence[str]) -> UsageError:
    last = next((each for each in reversed(before) if each.startswith("--")), "")
    flag = _BY_NAME.get(last)
    behind = f" after `{last}`, which takes {flag.takes.value}" if flag is not None else ""
    hint = f"write ` -- ` before the command, {_EXAMPLE}"
    return UsageError(f"unexpected argument `{word}`{behind}", hint=hint, code="mason-usage")


def _keep(found: _Found, flag: MasonFlag, texts: Sequence[str], *, has_equals: bool, after: str) -> None:
    if flag.takes is Takes.NONE:
        if has_equals:
            raise UsageError(f"`{flag.name}` takes no value", hint=f"write `{flag.name}`", code="invalid-value")
        found.by_flag[flag.name] = [True]
        return
    if not texts and flag.takes is not Takes.ANY:
        hint = f"write `{flag.name} {flag.metavar}`"
        read = f"; `{after}` is read as an option" if after else ""
        raise UsageError(f"`{flag.name}` needs a value{read}", hint=hint, code="invalid-value")
    values = [_value(flag, text) for text in texts]
    before = found.by_flag.setdefault(flag.name, [])
    found.num_times[flag.name] = found.num_times.get(flag.name, 0) + 1
    if flag.takes is Takes.ONE and before and before[-1] != values[-1] and flag.field:
        found.note(f"{flag.name} is given more than once: the last value is used, `{texts[-1]}`")
    before.extend(values)


def _value(flag: MasonFlag, text: str) -> Any:
    try:
        return flag.read(text)
    except ValueError as error:
        word = nearest(text.lower(), _words_of(flag))
        choices = "|".join(_words_of(flag)) or flag.metavar
        hint = f"did you mean `{word}`?" if word else f"write `{flag.name} {choices}`"
        raise UsageError(f"`{flag.name} {_short(text)}`: {error}", hint=hint, code="invalid-value") from None


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _words_of(flag: MasonFlag) -> tuple[str, ...]:
    """Return the words that an option accepts, or nothing if it accepts any."""
    return {"priority": PRIORITIES, "cache": CACHES}.get(flag.field, ())


def _split(words: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the commands separated by `--`, without empty ones."""
    commands: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            commands.append([])
        else:
            commands[-1].append(word)
    return tuple(tuple(command) for command in commands if command)


def _check_commands(commands: Sequence[Sequence[str]]) -> None:
    """Raise if `--on` or `--emit` comes after `--`, where it would be part of the submitted command."""
    for word in (word for command in commands for word in command):
        flag = word.partition("=")[0]
        if flag in _BEFORE_COMMAND:
            message = f"`{flag}` is after `--`, so it belongs to the command"
            hint = (
                f"write `{flag}` before the `--`; if the command itself takes it, quote the whole command:"
                f" -- 'python train.py {flag} ...'"
            )
            raise UsageError(message, hint=hint, code="mason-usage")


def _options(found: _Found, environ: Mapping[str, str]) -> MasonOptions:
    """Return mason's options; repeated lists are joined, and repeated variables have their last value."""
    given = {flag.field: found.by_flag[flag.name] for flag in FLAGS if flag.field and flag.name in found.by_flag}
    if not given.get("cluster"):
        raise UsageError("`--cluster` is missing", hint=_EXAMPLE, code="invalid-value")
    made: dict[str, Any] = {name: _union(found, name, given[name]) for name in _LISTS if name in given}
    made |= {name: _last_of_each(found, name, given[name]) for name in ("env", "secret") if name in given}
    made |= {name: values[-1] for name, values in given.items() if name not in made}
    if "RUN_NAME" in environ:
        made.setdefault("description", environ["RUN_NAME"])
    options = MasonOptions(**made)
    _check(options, found)
    return options


def _union(found: _Found, name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return an option's values as typed if it is given once, otherwise without duplicates."""
    return tuple(dict.fromkeys(values)) if found.num_times[f"--{name}"] > 1 else tuple(values)


def _last_of_each(found: _Found, name: str, pairs: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    last = dict(pairs)
    if len(last) < len(pairs):
        twice = sorted({each for each, _ in pairs if sum(each == other for other, _ in pairs) > 1})
        found.note(f"--{name} gives {', '.join(twice)} more than once: the last value is used")
    return tuple(last.items())


def _check(options: MasonOptions, found: _Found) -> None:
    both = sorted(dict(options.env).keys() & dict(options.secret).keys())
    if both:
        message = f"`--env {both[0]}=...` and `--secret {both[0]}=...` set the same variable"
        raise UsageError(message, hint="remove one of them", code="conflicting-options")
    if options.num_nodes > 1 and options.no_host_networking:
        found.note("--no-host-networking with more than one node: nodes may be unable to reach each other")
    if options.preemptible and options.min_runtime_ns is not None:
        found.note("--min_runtime is given, so --preemptible has no effect")
    paths = [mount.mount_path for mount in options.beaker_datasets]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        message = f"`--beaker_datasets` mounts two datasets at `{twice}`"
        raise UsageError(message, hint="give each its own path", code="conflicting-options")


def _own(found: _Found) -> OwnOptions:
    made: dict[str, Any] = {}
    for flag in OWN:
        if flag.name in found.by_flag:
            values = found.by_flag[flag.name]
            made[flag.field] = tuple(values) if flag.takes is Takes.EACH else values[-1]
    own = OwnOptions(**made)
    if own.emit and own.emit not in _EMITS:
        hint = (
            f"did you mean `{nearest(own.emit, _EMITS)}`?" if nearest(own.emit, _EMITS) else "one of spec, beaker, plan"
        )
        raise UsageError(f"`--emit {own.emit}`: spec, beaker or plan is expected", hint=hint, code="invalid-value")
    elsewhere = next((flag.name for flag in OWN if flag.field in _ELSEWHERE and flag.name in found.by_flag), "")
    if elsewhere and not own.on and own.emit != "spec":
        hint = "add `--on SITE`, or remove it"
        raise UsageError(f"`{elsewhere}` requires `--on`", hint=hint, code="conflicting-options")
    if own.on and own.emit == "beaker":
        message = "`--emit beaker` prints Beaker's spec, and `--on` uses another site"
        raise UsageError(message, hint="with `--on` use `--emit spec` or `--emit plan`", code="conflicting-options")
    return own
