"""What cannot be: shapes that do not divide. All problems together, each with its field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from windlass.core.errors import Problem, SpecError
from windlass.train.callbacks.config import BatchSizeConfig, SequenceLengthConfig
from windlass.train.data.config import DataConfig
from windlass.train.model.flops import count_parameters
from windlass.train.parallel.mesh import MeshShape, check_model, mesh_shape
from windlass.train.plan.memory import num_in_pipeline
from windlass.train.recipe import Recipe

__all__ = ["check_parts", "checked_shape"]


def checked_shape(recipe: Recipe, world: int) -> MeshShape:
    """The mesh of a recipe on so many processes.

    Raises:
        SpecError: with every shape that does not divide, and all parts that do not go together.
    """
    counts = count_parameters(recipe.model)
    problems = check_model(recipe.parallel, recipe.model, sequence_length=recipe.data.sequence_length)
    try:
        shape = mesh_shape(recipe.parallel, world, num_parameters=counts.total)
    except SpecError as error:
        raise SpecError([*error.problems, *problems]) from None
    problems.extend(_rows(recipe, shape))
    for name, data in _later(recipe):
        later = replace(recipe, data=data)
        found = [
            *check_model(recipe.parallel, recipe.model, sequence_length=data.sequence_length),
            *_rows(later, shape),
        ]
        known = {problem.message for problem in problems}
        problems.extend(
            replace(problem, message=f"{name}: {problem.message}") for problem in found if problem.message not in known
        )
    problems.extend(check_parts(recipe))
    if problems:
        raise SpecError(problems)
    return shape


def check_parts(recipe: Recipe) -> Iterator[Problem]:
    """Parts of a recipe that the parallel plan cannot go with."""
    parallel = recipe.parallel
    is_split = parallel.pipeline.stages > 1 and parallel.pipeline.schedule == "zero-bubble"
    if recipe.loss.kind == "chunked" and (is_split or parallel.tensor > 1):
        name = "parallel.pipeline.schedule zero-bubble" if is_split else f"parallel.tensor {parallel.tensor}"
        message = f"loss.kind: with {name} the loss has all its logits at once, and no chunks"
        yield Problem(message, "ignored-setting", hint="write `loss.kind=auto`")
    yield from _evaluation(recipe)


def _evaluation(recipe: Recipe) -> Iterator[Problem]:
    """What cannot be evaluated while it trains: the harness asks for logits of whole rows, in one call."""
    axes = {"pipeline.stages": recipe.parallel.pipeline.stages, "context": recipe.parallel.context}
    split = [f"parallel.{name} {size}" for name, size in axes.items() if size > 1]
    if not split or recipe.no_evals:
        return
    for name, config in recipe.callbacks.items():
        if config.kind == "downstream" and config.enabled:
            message = f"callbacks.{name}: tasks cannot be asked of a model with {split[0]}; `lm-eval` can"
            hint = f"write callbacks.{name}.enabled=false, and ask its checkpoints with `train.run_tasks`"
            yield Problem(message, "unsupported-model", hint=hint)


def _rows(recipe: Recipe, shape: MeshShape) -> Iterator[Problem]:
    """The rows of a batch over processes and microbatches."""
    data = recipe.data
    rows, groups = data.batch_tokens // data.sequence_length, shape.data_parallel
    if rows % groups:
        best = max(1, round(rows / groups)) * groups * data.sequence_length
        yield Problem(
            f"data.batch_tokens: {rows} rows of {data.sequence_length} tokens do not divide by {groups} data-parallel "
            "processes",
            "shape-conflict",
            hint=f"try data.batch_tokens={best}, or a number of processes that divides {rows}",
        )
        return
    share, strict = rows // groups, recipe.parallel.strict
    if strict is not None:
        if rows % strict.shards:
            yield Problem(
                f"parallel.strict.shards: {rows} rows of a batch do not divide into {strict.shards} shards",
                "shape-conflict",
                hint=f"choose a power of two that divides {rows}",
            )
        return
    at_once = (data.microbatch_tokens or data.sequence_length) // data.sequence_length
    if share % at_once:
        divisor = max(count for count in range(1, at_once + 1) if share % count == 0)
        yield Problem(
            f"data.microbatch_tokens: {share} rows of a process do not divide into microbatches of {at_once}",
            "shape-conflict",
            hint=f"try data.microbatch_tokens={divisor * data.sequence_length}",
        )
    elif shape.pp > 1:
        yield from _stages(recipe, share, num_in_pipeline(recipe, shape))


def _stages(recipe: Recipe, share: int, num: int) -> Iterator[Problem]:
    """Microbatches of a pipeline."""
    data, where = recipe.data, "parallel.pipeline.num_microbatches"
    pipeline = recipe.parallel.pipeline
    most = share if data.microbatch_tokens is None else data.microbatch_tokens // data.sequence_length
    misfit = pipeline.misfit(share, num)
    if not misfit and share // num > most:
        misfit = f"{num} microbatches are of {share // num} rows, and data.microbatch_tokens of {most}"
    if misfit:
        fits = [count for count in range(1, share + 1) if not pipeline.misfit(share, count) and share // count <= most]
        best = min(fits, key=lambda count: abs(count - num), default=None)
        hint = "change `data.batch_tokens` or `data.microbatch_tokens`" if best is None else f"try {where}={best}"
        yield Problem(f"{where}: {misfit}", "shape-conflict", hint=hint)


def _later(recipe: Recipe) -> Iterator[tuple[str, DataConfig]]:
    """Settings of data that callbacks bring while training goes on."""
    for name, config in recipe.callbacks.items():
        if isinstance(config, BatchSizeConfig) and config.enabled:
            for place, tokens in enumerate(config.tokens):
                yield f"callbacks.{name}.tokens.{place}", replace(recipe.data, batch_tokens=tokens)
        elif isinstance(config, SequenceLengthConfig) and config.enabled:
            for place, length in enumerate(config.lengths):
                yield f"callbacks.{name}.lengths.{place}", replace(recipe.data, sequence_length=length)
