"""docs/reference/recipe.md, made from the dataclasses of `windlass.train`: every field, what it takes, its default.

python -m scripts.recipe_reference --write     after a change of a configuration of windlass.train, or of a shipped recipe
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from scripts.tree import ROOT
from windlass.train.help import FieldHelp, field_help
from windlass.train.plan.machine import GPUS
from windlass.train.recipes.shipped import SHIPPED

PAGE = ROOT / "docs" / "reference" / "recipe.md"

_INTRODUCTION = """\
# Recipes of training

Made by `python -m scripts.recipe_reference --write` from what windlass itself reads; a test holds that it is current. How
recipes work: [recipes](../concepts/recipes.md). The same as a JSON Schema for editors: `windlass train --schema`; for one
recipe, with its values: `windlass train RECIPE --help`. Every field can be changed on the command line, by its path:
`windlass train RECIPE optim.lr=3e-4`.

A length of training is a whole number and its unit: `100steps`, `5e9 tokens`, `2 epochs`. NAME stands for a name of your
choice, 0 for a position in a list. Where fields belong to some kinds only, they are named before the meaning.
"""


def reference() -> str:
    """The page."""
    return "\n".join([_INTRODUCTION, *_shipped(), *_gpus(), *_sections()]).rstrip("\n") + "\n"


def _shipped() -> Iterator[str]:
    yield from ("## Recipes that come with windlass", "", "| recipe | what it is |", "|---|---|")
    yield from (f"| `{name}` | {shipped.summary} |" for name, shipped in SHIPPED.items())
    yield ""


def _gpus() -> Iterator[str]:
    yield from ("## GPUs that `--plan gpu=` knows", "", "| gpu | memory | bfloat16 | float32 |", "|---|---|---|---|")
    for name, gpu in GPUS.items():
        peaks = f"{gpu.bfloat16_flops / 1e12:g} TFLOPS | {gpu.float32_flops / 1e12:g} TFLOPS"
        yield f"| `{name}` | {gpu.memory_bytes / 1e9:g} GB | {peaks} |"
    yield ""


def _sections() -> Iterator[str]:
    """A table for each field at the top that holds more, after one of those that do not."""
    groups: dict[str, list[FieldHelp]] = {"": []}
    for row in field_help():
        top = row.path.partition(".")[0]
        groups.setdefault(top, []).append(row)
    alone = [rows[0] for top, rows in groups.items() if top and len(rows) == 1]
    yield from _table("Top level", alone)
    for top, rows in groups.items():
        if len(rows) > 1:
            yield from _table(f"`{top}`", rows)


def _table(title: str, rows: list[FieldHelp]) -> Iterator[str]:
    yield from (f"## {title}", "", "| field | takes | default | meaning |", "|---|---|---|---|")
    for row in rows:
        kinds = f"*{', '.join(row.kinds)}*: " if row.kinds else ""
        default = row.value if row.value in ("", "required") else f"`{row.value}`"
        yield f"| `{row.path}` | {_cell(row.takes)} | {_cell(default)} | {kinds}{_cell(row.doc)} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(reference())
    else:
        print(reference(), end="")
