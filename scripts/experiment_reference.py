"""docs/reference/experiment.md, made from the dataclasses of `windlass.spec`: every key, what it takes, its default.

python -m scripts.experiment_reference --write     after a change of windlass.spec
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from scripts.tree import ROOT
from windlass.config.encode import plain
from windlass.config.field_types import (
    Field,
    FieldType,
    ListType,
    MapType,
    OneOfType,
    RecordType,
    fields_of,
    key_shorthands,
)
from windlass.config.phrases import accepted
from windlass.core.units import format_duration
from windlass.plan.capabilities import LOCAL_RULES, SLURM_RULES, SettingRule, Treatment
from windlass.spec import Experiment

PAGE = ROOT / "docs" / "reference" / "experiment.md"

_INTRODUCTION = """\
# The experiment file

Made by `python -m scripts.experiment_reference --write` from what windlass itself reads; a test holds that it is current.
The same as a JSON Schema for editors: `windlass config schema`. Every key can be changed for one run on the command line,
by its path: `windlass launch experiment.yaml tasks.train.nodes=2`.

Durations have a unit: `90s`, `20m`, `1h30m`, `5d`. Sizes too: `512MiB`, `16GiB`; `16GB` is a power of 1000. NAME stands
for a name of your choice. Where one item is enough, a list may be written as its one item: `after: prep`.

## Tokens

They are replaced in `run` and in variables; `$${` is a literal `${`.

| token | stands for |
|---|---|
| `${params.NAME}`, `${params.NAME.INNER}` | a parameter |
| `${name}` | the experiment's name |
| `${nodes}`, `${gpus_per_node}`, `${num_gpus}`, `${procs_per_node}` | the task's shape at the place where it runs |
| `${num_gpus - 2 * nodes}`, `${repeat(2, nodes)}` | calculated from the shape and from whole parameters: `+ - * // %`, parentheses, `min`, `max`, `ceil_div`, `repeat` (a list) |
| `${out}`, `${checkpoints}`, `${code}` | the task's folders, the run's own checkout |
| `${tasks.NAME.out}`, `${tasks.NAME.checkpoints}` | folders of a task that this one comes `after` |
| `${data.NAME}` | where the data lies |
| `${run}`, `${job}`, `${attempt}`, `${rank}` | the run's id, and the numbers of job, attempt and replica |
| `${leader.address}`, `${leader.port}` | where the gang's replicas meet |
"""


def reference() -> str:
    """The page."""
    return "\n".join([_INTRODUCTION, *_sections(Experiment, ())]).rstrip("\n") + "\n"


def _sections(cls: type[object], path: tuple[str, ...]) -> Iterator[str]:
    """The table of one mapping, then those of the mappings in it."""
    yield f"## `{'.'.join(path)}`" if path else "## Top level"
    yield ""
    yield _sentence(cls)
    yield ""
    yield "| key | takes | default | meaning |"
    yield "|---|---|---|---|"
    for key, field in fields_of(cls).items():
        yield f"| `{key}` | {takes_text(field.type)} | {default_text(field)} | {_meaning(field, (*path, key))} |"
    for key, target in key_shorthands(cls).items():
        yield f"| `{key}` | | | short for `{target}` |"
    yield ""
    for key, field in fields_of(cls).items():
        inner = record_in(field.type)
        if inner is not None:
            record, steps = inner
            yield from _sections(record, (*path, key, *steps))


def _sentence(cls: type[object]) -> str:
    return (cls.__doc__ or "").split("\n", maxsplit=1)[0]


def takes_text(field_type: FieldType) -> str:
    """What a key takes, in words."""
    if isinstance(field_type, MapType):
        return f"NAME: {takes_text(field_type.item)}"
    return accepted(field_type)


def default_text(field: Field) -> str:
    """Its default as a file would say it, or that it has none."""
    if field.is_required:
        return "required"
    value = field.default()
    if value is None or value in ("", (), {}) or record_in(field.type) is not None:
        return ""
    if isinstance(value, float) and "duration" in takes_text(field.type):
        return f"`{format_duration(value)}`"
    text = plain(value, field.type)
    return f"`{str(text).lower() if isinstance(text, bool) else text}`"


def _meaning(field: Field, path: tuple[str, ...]) -> str:
    pattern = ".".join("*" if step == "NAME" else step for step in path)
    local, slurm = _refusal(LOCAL_RULES, pattern), _refusal(SLURM_RULES, pattern)
    said = [field.doc]
    if local is not None:
        said.append(f"Refused on `local`{' and on Slurm' if local is slurm else ''}: {local.reason}.")
    if slurm is not None and slurm is not local:
        is_conditional = slurm.able is not None or slurm.mapped is not None
        said.append(f"Refused on Slurm{' if' if is_conditional else ':'} {slurm.reason}.")
    return " ".join(said).replace("|", "\\|")


def _refusal(rules: Mapping[str, SettingRule], pattern: str) -> SettingRule | None:
    rule = rules.get(pattern)
    is_refused = rule is not None and rule.treatment in (Treatment.REFUSED, Treatment.IMPOSSIBLE)
    return rule if is_refused else None


def record_in(field_type: FieldType) -> tuple[type[object], tuple[str, ...]] | None:
    """The dataclass that a key holds, and the steps of the path to it."""
    match field_type:
        case RecordType():
            return field_type.cls, ()
        case MapType():
            found, step = record_in(field_type.item), "NAME"
        case ListType():
            found, step = record_in(field_type.item), "0"
        case OneOfType():
            return next((found for option in field_type.options if (found := record_in(option)) is not None), None)
        case _:
            return None
    return None if found is None else (found[0], (step, *found[1]))


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(reference())
    else:
        print(reference(), end="")
