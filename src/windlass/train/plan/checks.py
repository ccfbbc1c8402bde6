"""What cannot be: shapes that do not divide. All problems together, each with its field."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.core.errors import Problem, SpecError
from windlass.train.model.flops import count_parameters
from windlass.train.parallel.mesh import MeshShape, check_model, mesh_shape
from windlass.train.plan.memory import num_in_pipeline
from windlass.train.recipe import Recipe

__all__ = ["checked_shape"]


def checked_shape(recipe: Recipe, world: int) -> MeshShape:
    """The mesh of a recipe on so many processes.

    Raises:
        SpecError: with every shape that does not divide.
    """
    counts = count_parameters(recipe.model)
    problems = check_model(recipe.parallel, recipe.model, sequence_length=recipe.data.sequence_length)
    try:
        shape = mesh_shape(recipe.parallel, world, num_parameters=counts.total)
    except SpecError as error:
        raise SpecError([*error.problems, *problems]) from None
    problems.extend(_rows(recipe, shape))
    if problems:
        raise SpecError(problems)
    return shape


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
    # Microbatches of a pipeline are cut from the whole share.
    at_once = (data.microbatch_tokens or data.sequence_length) // data.sequence_length
    if share % at_once:
        divisor = max(count for count in range(1, at_once + 1) if share % count == 0)
        yield Problem(
            f"data.microbatch_tokens: {share} rows of a process do not divide into microbatches of {at_once}",
            "shape-conflict",
            hint=f"try data.microbatch_tokens={divisor * data.sequence_length}",
        )
    elif shape.pp > 1 and share % num_in_pipeline(recipe):
        yield Problem(
            f"parallel.pipeline.num_microbatches: {share} rows of a process do not divide by {num_in_pipeline(recipe)}",
            "shape-conflict",
            hint=f"choose a divisor of {share}",
        )
