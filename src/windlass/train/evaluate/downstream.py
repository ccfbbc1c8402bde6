"""Callback `downstream`, which runs tasks of lm-evaluation-harness during training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.core.errors import Problem, SpecError
from windlass.core.extras import require
from windlass.core.names import nearest
from windlass.train.data.tokenizer import Tokenizer
from windlass.train.duration import Duration
from windlass.train.evaluate.lm_eval import PeriodicEvaluation

if TYPE_CHECKING:
    from windlass.train.model.decoder import Decoder
    from windlass.train.parallel.world import World

__all__ = ["Downstream", "run_tasks"]


class Downstream(PeriodicEvaluation):
    """Callback that records `eval/TASK/METRIC` for tasks of lm-evaluation-harness.

    Args:
        tasks: names of the harness's tasks, groups or tags.
        num_fewshot: examples in the prompt.
        limit: number of documents from each task; if None, all of them.
        include: folder that contains custom tasks; if empty, there are none.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        tokenizer: Tokenizer,
        *,
        every: Duration | None = None,
        num_fewshot: int = 0,
        limit: int | None = None,
        include: str = "",
        batch_tokens: int = 16_384,
    ) -> None:
        super().__init__(every=every)
        self.tasks, self.tokenizer = tuple(tasks), tokenizer
        self.num_fewshot, self.limit, self.include, self.batch_tokens = num_fewshot, limit, include, batch_tokens
        self._manager: Any = None

    def on_attach(self) -> None:
        """Look up the tasks, so that an unknown name is reported before training."""
        self._manager = task_manager(self.tasks, self.include)

    def measure(self) -> Mapping[str, float] | None:
        """Return the scores of all tasks. Collective."""
        trainer = self.trainer
        model: Any = trainer.module.model
        return run_tasks(
            model,
            self.tokenizer,
            self.tasks,
            num_fewshot=self.num_fewshot,
            limit=self.limit,
            batch_tokens=self.batch_tokens,
            world=trainer.world,
            should_stop=trainer.agree_on_stop,
            manager=self._manager,
        )


def run_tasks(
    model: Decoder,
    tokenizer: Tokenizer,
    tasks: Sequence[str],
    *,
    num_fewshot: int = 0,
    limit: int | None = None,
    include: str = "",
    batch_tokens: int = 16_384,
    world: World | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    manager: Any = None,
) -> Mapping[str, float] | None:
    """Return scores as `eval/TASK/METRIC`, or None if `should_stop` returned true. Collective; may download datasets.

    Leaves random states unchanged.

    Raises:
        PreconditionError: lm_eval is not installed.
        SpecError: there is no such task.
    """
    lm_eval = _lm_eval()
    from windlass.train.evaluate.harness import HarnessModel, Interrupted  # lazy: it imports lm_eval, 3 s

    manager = manager if manager is not None else task_manager(tasks, include)
    adapter = HarnessModel(model, tokenizer, world=world, batch_tokens=batch_tokens, should_stop=should_stop)
    try:
        found = lm_eval.simple_evaluate(
            model=adapter,
            tasks=list(tasks),
            num_fewshot=num_fewshot or None,
            limit=limit,
            bootstrap_iters=0,
            log_samples=False,
            task_manager=manager,
            random_seed=None,
            numpy_random_seed=None,
            torch_random_seed=None,
        )
    except Interrupted:
        return None
    return _told_to_all(None if found is None else dict(_scores(found["results"])), world)


def _told_to_all(scores: Mapping[str, float] | None, world: World | None) -> Mapping[str, float] | None:
    """Broadcast rank 0's results, because under torchrun only the first process on each machine has any."""
    if world is None or world.size == 1:
        return scores
    from torch.distributed import broadcast_object_list  # lazy: a single process does not need it

    told = [scores]
    broadcast_object_list(told, src=0)
    return told[0]


def task_manager(tasks: Sequence[str], include: str = "") -> Any:
    """Return the harness's index of tasks, including those in a folder.

    Takes seconds, unless all tasks are in the folder.

    Raises:
        PreconditionError: lm_eval is not installed.
        SpecError: a task is unknown.
    """
    _lm_eval()
    if include and not Path(include).expanduser().is_dir():
        raise SpecError([Problem(f"no folder {include}", "unknown-name", hint="check `include`")])
    known: set[str] = set()
    missing = list(tasks)
    for manager in _managers(str(Path(include).expanduser()) if include else None):
        missing = [task for task in tasks if not manager.match_tasks([task])]
        known.update(manager.all_tasks)
        if not missing:
            return manager
    raise SpecError(_unknown(task, sorted(known)) for task in missing)


def _managers(include: str | None) -> Iterator[Any]:
    """Yield an index of custom tasks, then an index of all tasks, which reads thousands of files."""
    from lm_eval.tasks import TaskManager

    if include:
        yield TaskManager(include_path=include, include_defaults=False)
    yield TaskManager(include_path=include)


def _unknown(task: str, known: Sequence[str]) -> Problem:
    near = nearest(task, known)
    hint = f"did you mean `{near}`?" if near else "`lm-eval ls tasks` lists them"
    return Problem(f"lm-evaluation-harness has no task {task}", "unknown-name", hint=hint)


def _lm_eval() -> Any:
    message = "tasks of lm-evaluation-harness need the package lm-eval, which is not installed"
    hint = "`pip install lm-eval`, or remove the callback of kind `downstream`"
    return require("lm_eval", message, hint=hint)  # lazy: optional, and 3 s


def _scores(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return the metrics in each task's `{"acc,none": 0.5, "alias": ...}`.

    Names include the filter unless it is `none`.
    """
    found = []
    for task, values in results.items():
        for key, value in values.items():
            metric, _, chosen = key.partition(",")
            if isinstance(value, bool) or not isinstance(value, int | float) or metric.endswith("_stderr"):
                continue
            if chosen:
                name = f"eval/{task}/{metric}" + ("" if chosen == "none" else f"/{chosen}")
                found.append((name, float(value)))
    return found
