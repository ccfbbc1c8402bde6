"""A plan of post-training as text."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.core.phrases import size
from windlass.post.plan import PostPlan, total_bytes
from windlass.train.plan.page import number, plan_facts, time_of

__all__ = ["plan_lines"]


def plan_lines(plan: PostPlan) -> Iterator[str]:
    """Yield the lines of the plan, without warnings."""
    yield from plan_facts(plan.learner)
    yield "processes: " + ", ".join(f"{count} {name}" for name, count in plan.processes.items())
    yield "work of a batch, at most (a prompt is counted for each answer that is learned)"
    for work in plan.work:
        yield f"  {work.name:<14}{number(work.tokens) + ' tokens':<16}{work.flops:.3g} FLOPs"
    if plan.engine is not None:
        each = plan.engine
        slots = f"{each.num_slots} slots of {each.slot_tokens} tokens, {size(each.slot_bytes)} each"
        yield f"engine: {slots}; weights {size(each.weights_bytes)}; {each.num_engines} in all"
    for name, parts in plan.devices.items():
        yield f"memory of {name} (estimate)"
        for part in parts:
            when = "" if part.phase == "always" else f"  while {part.phase}"
            yield f"  {part.name:<16}{size(part.num_bytes):>10}{when}"
        yield f"  {'at most':<16}{size(total_bytes(parts)):>10}"
    if plan.host_bytes:
        yield f"versions of weights in the memory of the first learner's machine: {size(plan.host_bytes)}"
    yield f"at {plan.learner.machine.mfu:.0%} of the peak (model FLOPs utilisation); generation at the full bandwidth"
    for speed in plan.speeds:
        made = f"generation at least {speed.generation_s:.3g} s, " if plan.engine is not None else ""
        fits = f", {speed.slots:,} slots fit" if speed.slots is not None else ""
        batch = f"{made}learning {speed.learning_s:.3g} s a batch"
        yield f"  {speed.gpu:<16}{time_of(speed.hours):<10}{batch}; {speed.memory_share:.0%} of its memory{fits}"
    if plan.sandbox is not None:
        yield f"sandbox of programs on this machine: {'; '.join(plan.sandbox) or 'complete'}"
