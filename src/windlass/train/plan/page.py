"""A plan as text."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.core.phrases import size
from windlass.train.plan.plan import TrainPlan

__all__ = ["number", "plan_facts", "plan_page", "time_of"]

_DAY_H = 24.0


def plan_page(plan: TrainPlan) -> Iterator[str]:
    """Yield the lines of the plan, without warnings."""
    yield from plan_facts(plan)
    yield "memory of a process (estimate)"
    for part in ("weights", "gradients", "optimizer", "gathered", "activations", "logits"):
        yield f"  {part:<14}{size(getattr(plan.memory, part)):>10}"
    yield f"  {'total':<14}{size(plan.memory.total):>10}"
    yield f"at {plan.machine.mfu:.0%} of the peak (model FLOPs utilisation)"
    for speed in plan.speeds:
        fits = f"{speed.memory_share:.0%} of its memory"
        rate = f"{number(speed.tokens_per_s)} tokens/s"
        yield f"  {speed.gpu:<16}{rate:<20}{time_of(speed.hours):<14}{fits}"
    yield from _applied(plan)


def plan_facts(plan: TrainPlan) -> Iterator[str]:
    """Yield the lines about the mesh, sizes, lengths and checkpoints."""
    axes = " x ".join(f"{name} {degree}" for name, degree in plan.shape.axes) or "one process"
    yield f"{plan.name} on {plan.machine.world} {'process' if plan.machine.world == 1 else 'processes'}: {axes}"
    for name, text in _facts(plan):
        yield f"  {name:<14}{text}"


def _facts(plan: TrainPlan) -> Iterator[tuple[str, str]]:
    counts = plan.parameters
    active = f", {number(counts.active)} of them active" if counts.active != counts.total else ""
    trained = f"; {number(counts.trained)} of them trained" if counts.frozen else ""
    yield "parameters", f"{number(counts.total)}{active}, {number(counts.embedding)} in embedding and head{trained}"
    rows = plan.batch_tokens // plan.sequence_length
    split = f"{plan.shape.data_parallel} x {plan.microbatches} microbatches of {plan.rows_at_once}"
    yield "batch", f"{number(plan.batch_tokens)} tokens: {rows} rows of {plan.sequence_length}; {split}"
    yield "data", _data(plan)
    length = plan.length
    if length.steps is None or length.tokens is None:
        yield "length", "given by the data"
    else:
        per_weight = length.tokens / plan.parameters.active
        about = "at most " if length.is_bound else "" if length.is_exact else "about "
        yield (
            "length",
            f"{about}{length.steps:,} steps, {number(length.tokens)} tokens ({per_weight:.3g} for each parameter)",
        )
    total = "" if plan.flops is None else f", {plan.flops:.3g} in all"
    yield "FLOPs", f"{plan.flops_per_token:.3g} a token{total}"
    kept = plan.checkpoints.num_permanent
    count = "" if kept is None else f", {kept} that stay: {size(kept * plan.checkpoints.bytes_each)}"
    yield "checkpoints", f"{size(plan.checkpoints.bytes_each)} each{count}"


def _data(plan: TrainPlan) -> str:
    facts = plan.data.facts
    if facts is None:
        return f"unknown: {plan.data.note}"
    about = "" if facts.is_exact else "about "
    raw = f", {size(facts.text_bytes)} of text to tokenize" if facts.text_bytes else ""
    return f"{about}{number(facts.tokens)} tokens{raw}; {about}{facts.batches_per_epoch:,} steps an epoch"


def _applied(plan: TrainPlan) -> Iterator[str]:
    if plan.applied.note:
        yield f"not applied to a model without weights: {plan.applied.note}"
        return
    facts = plan.applied.facts
    yield f"applied to a model without weights, as process 0 of {plan.machine.world} on a fake network"
    held = facts.get("bytes_of_process")
    if isinstance(held, int):
        yield f"  {'weights':<14}{size(held)} in this process"
    if facts.get("ran_backward"):
        ran = "one short row, forward and backward"
    else:
        ran = f"nothing: {'one stage alone has no loss' if plan.shape.pp > 1 else 'the model is too large for it'}"
    yield f"  {'computed':<14}{ran}"


def number(value: float) -> str:
    """Format a large number with three significant digits: 6.89B."""
    for factor, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.3g}"


def time_of(hours: float | None) -> str:
    """Format hours with three significant digits, in days, hours, minutes or seconds."""
    if hours is None:
        return "-"
    for length, unit in ((_DAY_H, "days"), (1.0, "h"), (1 / 60, "min")):
        if hours >= 2 * length:
            return f"{round(hours / length):,} {unit}" if hours >= 100 * length else f"{hours / length:.3g} {unit}"
    return f"{hours * 3600:.2g} s"
