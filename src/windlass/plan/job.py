"""From a plan to job.json: late tokens become what they are on one machine, in one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from windlass.core.errors import InternalError, PreconditionError
from windlass.plan.plan import Plan, TaskPlan
from windlass.plan.resolve import fill_tokens
from windlass.plan.tokens import IN_JOB_TOKENS, Token, parse_tokens
from windlass.supervise.job import JobDocument, Lease, ReplicaCommand

__all__ = ["Places", "job_document"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the parts of one run lie on the machine of its job; absolute paths.

    Attributes:
        run: the run's id.
        code: folder of the code in the run's own checkout; what `${code}` is.
        cwd: where commands start; None: in `code`.
        data: path of each data entry.
        path: folders for the front of PATH; the environment's `bin` first.
        python_path: folders and archives for the front of PYTHONPATH.
        virtual_env: the environment's folder, for VIRTUAL_ENV; None: no virtual environment.
        lease: folder with the table of leases; None: nothing is leased.
        delivery: file with the secret values; None: there are none.
    """

    run: str
    run_dir: Path
    code: Path
    cwd: Path | None = None
    data: Mapping[str, Path] = field(default_factory=dict)
    path: tuple[Path, ...] = ()
    python_path: tuple[Path, ...] = ()
    virtual_env: Path | None = None
    lease: Path | None = None
    delivery: Path | None = None
    host_address: str = "127.0.0.1"

    def out(self, task: str) -> Path:
        """Where a task's output goes, over all attempts."""
        return self.run_dir / "out" / task

    def checkpoints(self, task: str) -> Path:
        """Where a task's checkpoints go, over all attempts."""
        return self.run_dir / "checkpoints" / task


def job_document(plan: Plan, task: TaskPlan, *, places: Places, job: int, token: str) -> JobDocument:
    """What one submission of a task hands to its supervisors; pure.

    Args:
        job: number of this submission of the task, from 1.
        token: marks every process of the run on this machine.

    Raises:
        PreconditionError: a path cannot stand where the command wants it.
        InternalError: a token has no value, or a path is not absolute.
    """
    values = _values(plan, task, places, job)
    _check_paths(task, values | ({} if places.virtual_env is None else {"VIRTUAL_ENV": str(places.virtual_env)}))
    argv = tuple(
        _fill(item, values, task, is_shell=task.is_shell and index == 2) for index, item in enumerate(task.argv)
    )
    env = {name: _fill(value, values, task) for name, value in task.env.items()}
    if places.virtual_env is not None:
        env.setdefault("VIRTUAL_ENV", str(places.virtual_env))
    own = {name: value for name, value in env.items() if _is_in_job(task.env.get(name, ""))}
    shared = {name: value for name, value in env.items() if name not in own}
    return JobDocument(
        run=places.run,
        task=task.name,
        job=job,
        token=token,
        run_dir=str(places.run_dir),
        replicas=tuple(ReplicaCommand(argv, own) for _ in range(task.nodes)),
        cwd=str(places.cwd or places.code),
        is_shell=task.is_shell,
        env=shared,
        path=tuple(str(entry) for entry in places.path),
        python_path=tuple(str(entry) for entry in places.python_path),
        after=task.after,
        interrupted=task.interrupted,
        failed=task.failed,
        ready_timeout_s=task.ready_timeout_s,
        grace_s=task.grace_s,
        per_job_s=task.per_job_s,
        time_s=task.time_s,
        checkpoint_every_s=task.checkpoint_every_s,
        checkpoint_pattern=task.checkpoint_pattern,
        is_resuming=task.is_resuming,
        stall_floor_s=task.stall_floor_s,
        is_stall_watched=task.is_stall_watched,
        memory_bytes=task.memory_bytes,
        out=str(places.out(task.name)),
        checkpoints=str(places.checkpoints(task.name)),
        lease=_lease(task, places),
        secrets=task.secrets,
        delivery="" if places.delivery is None else str(places.delivery),
        host_address=places.host_address,
    )


def _values(plan: Plan, task: TaskPlan, places: Places, job: int) -> dict[str, str]:
    paths = {"out": places.out(task.name), "checkpoints": places.checkpoints(task.name), "code": places.code}
    paths |= {f"data.{name}": path for name, path in places.data.items()}
    for other in plan.tasks:
        paths |= {f"tasks.{other.name}.out": places.out(other.name)}
        paths |= {f"tasks.{other.name}.checkpoints": places.checkpoints(other.name)}
    for name, path in paths.items():
        if not path.is_absolute():
            raise InternalError(f"the path for ${{{name}}} is not absolute: {path}")
    return {name: str(path) for name, path in paths.items()} | {"run": places.run, "job": str(job)}


def _check_paths(task: TaskPlan, values: Mapping[str, str]) -> None:
    """Refuse a path that holds `${`: the job replaces its own tokens, such as `${rank}`, in all that is filled in."""
    for name, value in values.items():
        if "${" in value:
            raise PreconditionError(
                f"task `{task.name}`: the path for `{name}` holds `${{`, which would be replaced in the job: {value}",
                hint="move windlass's home or the data to a path without `${`",
                code="unsafe-insert",
            )


def _fill(text: str, values: Mapping[str, str], task: TaskPlan, *, is_shell: bool = False) -> str:
    try:
        return fill_tokens(text, values, is_shell=is_shell)
    except KeyError as error:
        raise InternalError(f"task `{task.name}` has the token ${{{error.args[0]}}}, which has no value") from error
    except ValueError as error:
        hint = "move windlass's home or the data to a path without spaces and quotes"
        raise PreconditionError(f"task `{task.name}`: {error}", hint=hint, code="unsafe-insert") from error


def _is_in_job(text: str) -> bool:
    return any(isinstance(piece, Token) and piece.name in IN_JOB_TOKENS for piece in parse_tokens(text))


def _lease(task: TaskPlan, places: Places) -> Lease:
    """The whole gang's share; a task without GPUs takes part too, so that its processes see none."""
    if places.lease is None:
        return Lease()
    return Lease(
        folder=str(places.lease),
        gpus=task.nodes * task.gpus,
        cpus=task.nodes * task.cpus,
        memory_bytes=task.nodes * task.memory_bytes,
    )
