"""`windlass train`: train from a recipe, on its own, under torchrun or as a task."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import click

from windlass.cli.planning import PlanningVerb
from windlass.cli.screen import emit, emit_json, emit_page, table, tell
from windlass.cli.verb import json_option, verb
from windlass.cli.verbs.run.train_samples import checkpoints_of, samples_command
from windlass.cli.verbs.run.train_worker import worker_command
from windlass.core.errors import UsageError, WindlassError

if TYPE_CHECKING:
    from windlass.train.resolve import ResolvedRecipe

__all__ = ["train_command"]

_PLAN_WORDS = ("world", "gpu", "mfu", "per_node")


class TrainVerb(PlanningVerb):
    """Verb whose arguments are a RECIPE and overrides; `RECIPE --help` shows the recipe's fields.

    Attributes:
        members: verbs that stand in place of a RECIPE.
    """

    members: ClassVar[Mapping[str, click.Command]] = {"samples": samples_command, "worker": worker_command}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of this verb, or of the member that the first argument names."""
        member = self.members.get(args[0]) if args else None
        if member is None:
            return super().make_context(info_name, args, parent, **extra)
        return member.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments like a planning verb."""
        has_recipe = any(not word.startswith(("-", "~")) for word in args)
        words = ["--fields" if has_recipe and word in ("-h", "--help") else word for word in args]
        return super().parse_args(ctx, words)

    def is_file(self, word: str) -> bool:
        """Return whether a word names the RECIPE."""
        from windlass.train.recipes.shipped import SHIPPED  # lazy: only for words that may be a value

        return word in SHIPPED or word.endswith((".py", ".json")) or super().is_file(word)

    def params_of(self, ctx: click.Context) -> frozenset[str]:
        """Return no parameters, because a recipe has only fields."""
        return frozenset()

    def file_keys(self) -> tuple[str, ...]:
        """Return the top-level keys of a recipe."""
        return _recipe_keys()


@cache
def _recipe_keys() -> tuple[str, ...]:
    from windlass.config.field_types import fields_of  # lazy: only for words that look like options
    from windlass.train.recipe import Recipe

    return tuple(fields_of(Recipe))


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from windlass.cli.completion.files import complete_recipes  # lazy: only for shell completion

    return complete_recipes(context, parameter, incomplete)


@verb(
    "windlass train tiny data.sources.0.path=text.txt",
    "windlass train llama-271m --dry-run optim.lr=3e-4 stop=100steps",
    "windlass train olmo2-7b --plan world=64 gpu=h100-80gb parallel.data=fsdp",
    "windlass train recipe.py --help    # every field of it",
    "windlass train grpo --from-open-instruct 'python open_instruct/grpo_fast.py --beta 0.0 ...' > grpo.yaml",
    "torchrun --nproc-per-node 8 -m windlass train recipe.py",
    name="train",
    cls=TrainVerb,
)
@click.argument("file", required=False, type=click.Path(path_type=str), metavar="RECIPE", shell_complete=_complete)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=_complete)
@click.option("--dry-run", is_flag=True, help="Print the recipe with the origin of every value; do not train.")
@click.option("--plan", "is_plan", is_flag=True, help="Print the cost on `world=N` processes; do not train.")
@click.option("--rollouts-only", is_flag=True, help="Generate and store samples without learning (`rollout.only`).")
@click.option(
    "--ray-learners",
    "num_learners",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Learn in N processes, spread over the nodes of the Ray cluster of RAY_ADDRESS.",
)
@click.option("--fields", is_flag=True, help="Print every field with type, value and description.")
@click.option("--schema", "is_schema", is_flag=True, help="Print the JSON Schema of recipe files, for editors.")
@click.option("--list", "is_list", is_flag=True, help="List the shipped recipes.")
@click.option(
    "--from-open-instruct",
    "line",
    metavar="LINE",
    help="Print the recipe of a command line of open-instruct; do not train.",
)
@json_option
@click.pass_context
def train_command(
    context: click.Context,
    *,
    file: str | None,
    overrides: tuple[str, ...],
    dry_run: bool,
    is_plan: bool,
    rollouts_only: bool,
    num_learners: int,
    fields: bool,
    is_schema: bool,
    is_list: bool,
    line: str | None,
    is_json: bool,
) -> int:
    """Train a language model from a recipe.

    RECIPE is a shipped recipe (--list), `file.py`, `file.py:function`, `module:function`, a YAML or JSON file, or a
    checkpoint (its own recipe is used). Overrides change fields: `optim.lr=3e-4`, `model=olmo2-1b`, `stop=100steps`,
    `~checkpoint.keep`. With --plan, `world=64`, `gpu=h100-80gb` and `mfu=0.4` describe the machine.

    `windlass train samples RUN` prints what the policy of a run of `grpo` wrote; `windlass train worker FOLDER` generates
    for such a run.

    Exits with 0 if training is complete, with 75 if it was stopped and saved and can be resumed, and with another code if
    it failed.
    """
    if is_schema:
        _emit_schema()
    elif is_list:
        _emit_list(is_json=is_json)
    elif line is not None:
        _emit_converted(file, line, overrides, is_json=is_json)
    elif fields:
        _emit_fields(file, overrides, is_json=is_json)
    else:
        overrides = (*map(_with_folder, overrides), *(("rollout.only=true",) if rollouts_only else ()))
        settings, rest = _split(overrides) if is_plan else ({}, overrides)
        if num_learners > 1:
            settings.setdefault("world", str(num_learners))
        resolved = _resolved(context, file, rest, is_run=not (is_plan or dry_run), num_learners=num_learners)
        if is_plan:
            return _plan(resolved, settings, is_json=is_json)
        if dry_run:
            _emit_recipe(resolved, is_json=is_json)
        else:
            return _run(resolved, num_learners, [str(file), *overrides])
    return 0


def _run(resolved: ResolvedRecipe, num_learners: int, words: Sequence[str]) -> int:
    """Train, as the first of several processes if they are wanted, and return the exit code."""
    from windlass.train.run import run_recipe  # lazy: torch costs seconds

    if num_learners == 1:
        return run_recipe(resolved)
    from windlass.train.parallel.ray_processes import RayProcesses  # lazy: only for this option

    others = RayProcesses(num_learners, ["train", *words])
    code = run_recipe(resolved)
    others.close()
    return code


def _with_folder(word: str) -> str:
    """Return an override with the folder of a run in place of its name, in `rollout.replay=RUN`."""
    key, _, value = word.removeprefix("--").partition("=")
    return f"{key}={checkpoints_of(value)}" if key == "rollout.replay" and value else word


def _resolved(
    context: click.Context, file: str | None, overrides: Sequence[str], *, is_run: bool, num_learners: int
) -> ResolvedRecipe:
    """Return the checked recipe. Under torchrun, one process per machine reports errors.

    For a run, divisibility by the number of processes is checked too, before torch is imported or a GPU is used.
    """
    from windlass.train.parallel.world import place_of  # lazy: after the cheap checks
    from windlass.train.plan.checks import checked_shape
    from windlass.train.resolve import resolve

    size = place_of()[1] if is_run or num_learners > 1 else 1
    if num_learners > 1 and size > 1:
        message = f"--ray-learners starts processes, and this is one of {size} already"
        raise UsageError(message, hint="leave out torchrun or the option", code="conflicting-options")
    try:
        resolved = resolve(_required(context, file, overrides), overrides)
        if is_run:
            checked_shape(resolved.recipe.settled(), max(size, num_learners))
        return resolved
    except WindlassError as error:
        if os.environ.get("LOCAL_RANK", "0") != "0":
            context.exit(error.exit_code)
        raise


def _required(context: click.Context, file: str | None, overrides: Sequence[str]) -> str:
    if file is not None and not ("=" in file and not os.path.exists(file)):
        return file
    words = [*([file] if file else []), *overrides]
    seen = f"; `{words[0]}` is an override" if words else ""
    message = f"`{context.command_path}` needs a RECIPE{seen}"
    hint = f"run `{context.command_path} --list` for the shipped recipes, or give a file.py"
    raise UsageError(message, hint=hint, code="missing-argument")


def _is_main() -> bool:
    """Return whether this process prints, which only rank 0 does."""
    return os.environ.get("RANK", "0") == "0"


def _emit_recipe(resolved: ResolvedRecipe, *, is_json: bool) -> None:
    if not _is_main():
        return
    if is_json:
        record = resolved.record()
        emit_json(str(record.pop("schema")), record)
        return
    from windlass.train.page import recipe_page  # lazy: only for this option

    for line in recipe_page(resolved):
        emit(line)


def _emit_converted(file: str | None, line: str, overrides: Sequence[str], *, is_json: bool) -> None:
    """Print the recipe of a command line of open-instruct without its defaults, and the notes on the conversion."""
    from windlass.config.emit import to_yaml  # lazy: only for this option
    from windlass.post.open_instruct.convert import convert_line
    from windlass.train.resolve import class_name, resolve

    converted = convert_line(line)
    if file is not None and "=" in file:
        overrides, file = (file, *overrides), None
    if file not in (None, converted.recipe):
        message = f"this command line is a recipe of `{converted.recipe}`, not of `{file}`"
        hint = f"run `windlass train {converted.recipe} --from-open-instruct LINE`"
        raise UsageError(message, hint=hint, code="conflicting-options")
    resolved = resolve(converted.recipe, (*converted.overrides, *overrides))
    if is_json:
        _emit_recipe(resolved, is_json=True)
    else:
        emit(f"class: {class_name(type(resolved.recipe))}")
        emit(to_yaml(resolved.recipe).rstrip("\n"))
    for note in converted.notes:
        tell(f"note: {note}")


def _emit_schema() -> None:
    from windlass.config.schema_export import json_schema  # lazy: only for this option
    from windlass.train.recipe import Recipe

    emit(json.dumps(json_schema(Recipe), indent=2))


def _emit_list(*, is_json: bool) -> None:
    from windlass.train.recipes.shipped import SHIPPED  # lazy: only for this option

    if is_json:
        emit_json("windlass.recipes/1", {"recipes": {name: shipped.summary for name, shipped in SHIPPED.items()}})
        return
    for line in table(("recipe", "description"), [(name, shipped.summary) for name, shipped in SHIPPED.items()]):
        emit_page(line)


def _emit_fields(file: str | None, overrides: Sequence[str], *, is_json: bool) -> None:
    from dataclasses import asdict  # lazy: only for this option

    from windlass.train.help import field_help
    from windlass.train.resolve import resolve

    rows = field_help(resolve(file, overrides).recipe if file is not None else None)
    if not _is_main():
        return
    if is_json:
        emit_json("windlass.recipe-fields/1", {"fields": [asdict(row) for row in rows]})
        return
    cells = [(row.path, row.value, row.takes, _meaning(row.kinds, row.doc)) for row in rows]
    for line in table(("field", "value", "takes", "meaning"), [tuple(_short(cell) for cell in row) for row in cells]):
        emit_page(line)


def _meaning(kinds: Sequence[str], doc: str) -> str:
    return f"[{', '.join(kinds)}] {doc}" if kinds else doc


def _short(cell: str) -> str:
    return cell if len(cell) <= 100 else cell[:97] + "..."


def _split(overrides: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Separate settings for the machine from overrides of the recipe."""
    settings = {}
    rest = []
    for word in overrides:
        key, equals, value = word.removeprefix("--").partition("=")
        if equals and key in _PLAN_WORDS:
            settings[key] = value
        else:
            rest.append(word)
    return settings, tuple(rest)


def _plan(resolved: ResolvedRecipe, settings: dict[str, str], *, is_json: bool) -> int:
    """Print the plan; raise if shapes are not divisible as required."""
    from windlass.post.plan import PostPlan, plan_post  # lazy: only for this option
    from windlass.post.plan_page import plan_lines
    from windlass.post.recipe import PostRecipe
    from windlass.train.plan.machine import MachineSpec
    from windlass.train.plan.page import plan_page
    from windlass.train.plan.plan import plan_recipe

    recipe, machine = resolved.recipe, MachineSpec.from_words(settings)
    plan = plan_post(recipe, machine) if isinstance(recipe, PostRecipe) else plan_recipe(recipe, machine)
    if not _is_main():
        return 0
    if is_json:
        emit_json("windlass.train-plan/1", plan.to_data())
        return 0
    for line in plan_lines(plan) if isinstance(plan, PostPlan) else plan_page(plan):
        emit_page(line)
    for warning in plan.warnings:
        tell(f"warning: {warning}")
    return 0
