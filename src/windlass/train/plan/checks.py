"""Checks of a plan for shapes that are not divisible; reports all problems, each with its field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from windlass.core.errors import Problem, SpecError
from windlass.train.callbacks.config import BatchSizeConfig, SequenceLengthConfig
from windlass.train.data.config import AnyData, DataConfig, LoaderTarget
from windlass.train.model.config import ModelConfig
from windlass.train.model.flops import count_parameters
from windlass.train.optim.config import DionConfig, NorMuonConfig
from windlass.train.parallel.mesh import MeshShape, check_model, mesh_shape
from windlass.train.plan.memory import num_in_pipeline
from windlass.train.recipe import Recipe

__all__ = ["check_parts", "checked_shape"]


def checked_shape(recipe: Recipe, world: int, *, num_parameters: int | None = None) -> MeshShape:
    """Return the mesh for a recipe on a number of processes.

    Args:
        num_parameters: number of parameters; if None, counted for a decoder, and unknown for a custom model.

    Raises:
        SpecError: shapes do not divide, or parts conflict; reports all problems.
    """
    problems = plan_misfits(recipe)
    try:
        shape = mesh_shape(recipe.parallel, world, num_parameters=num_parameters or _num_parameters(recipe))
    except SpecError as error:
        raise SpecError([*error.problems, *problems]) from None
    problems.extend(_rows(recipe, shape))
    for name, data in _later(recipe):
        later = replace(recipe, data=data)
        found = [*plan_misfits(later), *_rows(later, shape)]
        known = {problem.message for problem in problems}
        problems.extend(
            replace(problem, message=f"{name}: {problem.message}") for problem in found if problem.message not in known
        )
    problems.extend(check_parts(recipe))
    if problems:
        raise SpecError(problems)
    return shape


def _num_parameters(recipe: Recipe) -> int | None:
    return count_parameters(recipe.model).total if isinstance(recipe.model, ModelConfig) else None


def plan_misfits(recipe: Recipe) -> list[Problem]:
    """Return a problem for each size of the model that the parallel plan does not divide.

    A custom model cannot be split.
    """
    if isinstance(recipe.model, ModelConfig):
        return check_model(recipe.parallel, recipe.model, sequence_length=recipe.data.sequence_length)
    plan = recipe.parallel
    sizes = {"tensor": plan.tensor, "context": plan.context, "expert": plan.expert}
    sizes["pipeline.stages"] = plan.pipeline.stages
    return [
        Problem(
            f"parallel.{name}: {size} processes, but {recipe.model.target} defines no way to split it",
            "unsupported-model",
            hint=f"set parallel.{name}=1; `data: ddp` and `data: fsdp` support any model",
        )
        for name, size in sizes.items()
        if size > 1
    ]


def check_parts(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem for each part of a recipe that conflicts with the parallel plan."""
    parallel = recipe.parallel
    is_split = parallel.pipeline.stages > 1 and parallel.pipeline.schedule == "zero-bubble"
    if recipe.loss.kind == "chunked" and (is_split or parallel.tensor > 1):
        name = "parallel.pipeline.schedule zero-bubble" if is_split else f"parallel.tensor {parallel.tensor}"
        message = f"loss.kind: with {name} the loss gets all logits at once, not in chunks"
        yield Problem(message, "setting-unused", hint="set `loss.kind=auto`")
    if parallel.strict is not None and isinstance(recipe.optim, (NorMuonConfig, DionConfig)):
        message = (
            f"parallel.strict: {recipe.optim.kind} sums over the processes that shard a matrix, without a fixed order"
        )
        yield Problem(message, "shape-conflict", hint="set `optim.kind=muon`, or remove `strict`")
    yield from _evaluation(recipe)
    if not recipe.no_evals:
        yield from _own_parts(recipe)


def _own_parts(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem for each evaluation that custom parts do not support."""
    for name, config in recipe.callbacks.items():
        if not config.enabled or config.kind not in ("lm-eval", "downstream"):
            continue
        if not isinstance(recipe.data, DataConfig):
            message = f"callbacks.{name}: rows are built by `data`, which is {recipe.data.target}"
            hint = "write your own callback that calls `trainer.module.eval_batch`"
            yield Problem(message, "unsupported-model", hint=hint)
        elif config.kind == "downstream" and not isinstance(recipe.model, ModelConfig):
            message = f"callbacks.{name}: tasks need a decoder; the model is {recipe.model.target}"
            yield Problem(message, "unsupported-model", hint="`lm-eval` evaluates any model on held-out text")


def _evaluation(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem for each evaluation that cannot run during training.

    The harness needs the logits of whole rows in one call.
    """
    axes = {"pipeline.stages": recipe.parallel.pipeline.stages, "context": recipe.parallel.context}
    split = [f"parallel.{name} {size}" for name, size in axes.items() if size > 1]
    if not split or recipe.no_evals:
        return
    for name, config in recipe.callbacks.items():
        if config.kind == "downstream" and config.enabled:
            message = f"callbacks.{name}: tasks are not supported with {split[0]}; `lm-eval` is"
            hint = f"set callbacks.{name}.enabled=false, and evaluate checkpoints with `train.run_tasks`"
            yield Problem(message, "unsupported-model", hint=hint)


def _rows(recipe: Recipe, shape: MeshShape) -> Iterator[Problem]:
    """Yield the problems with dividing the rows of a batch between processes and microbatches."""
    data = recipe.data
    if not _has_equal_rows(data):
        return  # microbatches of post-training are cut by tokens
    rows, groups = data.batch_tokens // data.sequence_length, shape.data_parallel
    if rows % groups:
        best = max(1, round(rows / groups)) * groups * data.sequence_length
        yield Problem(
            f"data.batch_tokens: {rows} rows of {data.sequence_length} tokens are not divisible by {groups} data-parallel "
            "processes",
            "shape-conflict",
            hint=f"try data.batch_tokens={best}, or a number of processes that divides {rows}",
        )
        return
    share, strict = rows // groups, recipe.parallel.strict
    if strict is not None:
        if rows % strict.shards:
            yield Problem(
                f"parallel.strict.shards: {rows} rows of a batch are not divisible into {strict.shards} shards",
                "shape-conflict",
                hint=f"choose a power of two that divides {rows}",
            )
        return
    at_once = (data.microbatch_tokens or data.sequence_length) // data.sequence_length
    if share % at_once:
        divisor = max(count for count in range(1, at_once + 1) if share % count == 0)
        yield Problem(
            f"data.microbatch_tokens: {share} rows of a process are not divisible into microbatches of {at_once}",
            "shape-conflict",
            hint=f"try data.microbatch_tokens={divisor * data.sequence_length}",
        )
    elif shape.pp > 1:
        yield from _stages(recipe, share, num_in_pipeline(recipe, shape))


def _has_equal_rows(data: object) -> bool:
    return isinstance(data, (DataConfig, LoaderTarget))


def _stages(recipe: Recipe, share: int, num: int) -> Iterator[Problem]:
    """Yield the problems with a pipeline's microbatches."""
    data, where = recipe.data, "parallel.pipeline.num_microbatches"
    pipeline = recipe.parallel.pipeline
    most = share if data.microbatch_tokens is None else data.microbatch_tokens // data.sequence_length
    misfit = pipeline.misfit(share, num)
    if not misfit and share // num > most:
        misfit = f"{num} microbatches have {share // num} rows each, but data.microbatch_tokens allows {most}"
    if misfit:
        fits = [count for count in range(1, share + 1) if not pipeline.misfit(share, count) and share // count <= most]
        best = min(fits, key=lambda count: abs(count - num), default=None)
        hint = "change `data.batch_tokens` or `data.microbatch_tokens`" if best is None else f"try {where}={best}"
        yield Problem(f"{where}: {misfit}", "shape-conflict", hint=hint)


def _later(recipe: Recipe) -> Iterator[tuple[str, AnyData]]:
    """Yield the data settings that callbacks set later in training."""
    for name, config in recipe.callbacks.items():
        if isinstance(config, BatchSizeConfig) and config.enabled:
            for place, tokens in enumerate(config.tokens):
                yield f"callbacks.{name}.tokens.{place}", replace(recipe.data, batch_tokens=tokens)
        elif isinstance(config, SequenceLengthConfig) and config.enabled:
            for place, length in enumerate(config.lengths):
                yield f"callbacks.{name}.lengths.{place}", replace(recipe.data, sequence_length=length)
