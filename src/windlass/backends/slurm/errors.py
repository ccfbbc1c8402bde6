"""Translation of sbatch's errors: "unreachable" if the job may be queued, otherwise "rejected"."""

from __future__ import annotations

import re
from collections.abc import Callable

from windlass.backends.site_shell import ShellResult
from windlass.core.errors import PreconditionError, UnreachableError, WindlassError
from windlass.core.names import nearest
from windlass.core.units import format_size
from windlass.sites.profile import Profile
from windlass.supervise.job import QueueRequest

__all__ = ["is_unreachable", "refusal", "unreachable"]

_NO_CONTACT = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Communication (connection|shutdown) failure|Connection (refused|timed out)"
    r"|controller not responding|backup controller in standby|Zero Bytes were transmitted|Message (send|receive) failure"
    r"|authentication|munge|configuration source|talking to database|temporarily (un|dis)|Resource temporarily"
    r"|Slurm controller.*(recovering|busy)|Insane message length|Slurm database",
    re.IGNORECASE,
)
_PREFIX = re.compile(r"^\s*sbatch: (?:error: )?(?:Batch job submission failed: )?", re.MULTILINE)
_CANNOT_RUN = 127

_Words = Callable[[QueueRequest, int, Profile], tuple[str, str]]


def is_unreachable(answer: ShellResult) -> bool:
    """Return True if a Slurm program failed because it could not reach the controller or accounting."""
    return bool(_NO_CONTACT.search(answer.err))


def unreachable(program: str, answer: ShellResult, site: str) -> WindlassError:
    """Return the error for a Slurm program that failed."""
    said = _said(answer)
    if answer.code == _CANNOT_RUN:
        return PreconditionError(
            f"`{program}` cannot be run at {site}: {said}",
            hint="`scheduler.bin` of the site's profile is the folder of Slurm's programs",
            code="program-missing",
        )
    return UnreachableError(
        f"Slurm at {site} does not respond: {said}", hint="nothing is lost; try again later", code="slurm-down"
    )


def refusal(answer: ShellResult, queue: QueueRequest, num_nodes: int, profile: Profile) -> WindlassError:
    """Return the error for a failed submission: "unreachable" if the job may be queued, otherwise "rejected"."""
    if answer.code == _CANNOT_RUN or is_unreachable(answer):
        return unreachable("sbatch", answer, profile.name)
    for pattern, words in _REFUSALS:
        if re.search(pattern, answer.err, re.IGNORECASE):
            message, hint = words(queue, num_nodes, profile)
            return PreconditionError(
                f"Slurm at {profile.name} rejected the job: {message} ({_said(answer)})",
                hint=hint,
                code="slurm-refused",
            )
    hint = f"`windlass site check {profile.name}` compares the profile with the site"
    return PreconditionError(
        f"Slurm at {profile.name} rejected the job: {_said(answer)}", hint=hint, code="slurm-refused"
    )


def _said(answer: ShellResult) -> str:
    return "; ".join(dict.fromkeys(_PREFIX.sub("", answer.err).strip().splitlines())) or f"exit code {answer.code}"


def _partition(queue: QueueRequest, num_nodes: int, profile: Profile) -> tuple[str, str]:
    if queue.partition in profile.partitions:
        anew = f"site add {profile.name} --replace"
        hint = f"`sinfo -s` lists the partitions; `windlass {anew}` updates the profile"
        return f"the profile names partition `{queue.partition}`, which Slurm does not have", hint
    close = nearest(queue.partition, tuple(profile.partitions))
    known = f"`sinfo -s` lists the partitions; the profile has {', '.join(profile.partitions) or 'none'}"
    return f"no partition `{queue.partition}`", f"did you mean `{close}`? {known}" if close else known


def _account(queue: QueueRequest, num_nodes: int, profile: Profile) -> tuple[str, str]:
    where = f" in partition `{queue.partition}`" if queue.partition else ""
    named = f"account `{queue.account}`" if queue.account else "no account"
    known = f" (the profile has {', '.join(profile.scheduler.accounts)})" if profile.scheduler.accounts else ""
    hint = f"`sacctmgr show associations user=$USER format=account,partition,qos` lists what you may use{known}"
    return f"{named} may not be used{where}", hint


def _qos(queue: QueueRequest, num_nodes: int, profile: Profile) -> tuple[str, str]:
    known = f"; the profile has {', '.join(profile.scheduler.qos_known)}" if profile.scheduler.qos_known else ""
    return (
        f"no QOS `{queue.qos}` for this account",
        f"`sacctmgr show associations user=$USER format=qos` lists yours{known}",
    )


def _time(queue: QueueRequest, num_nodes: int, profile: Profile) -> tuple[str, str]:
    return (
        f"a walltime of {queue.time_s / 60:g} min is not allowed",
        "give `limit.per_job` a shorter time, or name a partition or QOS that allows it; `sinfo -o '%P %l'` lists limits",
    )


def _shape(queue: QueueRequest, num_nodes: int, profile: Profile) -> tuple[str, str]:
    wanted = [f"{queue.gpus_per_node} {queue.gres_type} GPUs".replace("  ", " ")] if queue.gpus_per_node else []
    wanted += [f"{queue.cpus_per_node} CPUs"] if queue.cpus_per_node else []
    wanted += [f"{format_size(queue.memory_bytes)} memory"] if queue.memory_bytes else []
    wanted += [f"{format_size(queue.tmp_bytes)} disk"] if queue.tmp_bytes else []
    where = f" in partition `{queue.partition}`" if queue.partition else ""
    return (
        f"there are no {num_nodes} x ({', '.join(wanted) or 'a node'}){where}",
        "`sinfo -N -o '%N %c %m %G %d %f'` lists what nodes have; request less per node",
    )


def _nodes(queue: QueueRequest, num_nodes: int, profile: Profile) -> tuple[str, str]:
    named = [*queue.nodelist, *queue.exclude]
    return f"a node of {', '.join(named)} does not exist", "`sinfo -N` lists the nodes"


def _feature(queue: QueueRequest, num_nodes: int, profile: Profile) -> tuple[str, str]:
    return f"no node has the feature `{queue.constraint}`", "`sinfo -o '%N %f'` lists the features of nodes"


def _policy(queue: QueueRequest, num_nodes: int, profile: Profile) -> tuple[str, str]:
    who = " and ".join(
        [f"{word} `{value}`" for word, value in (("account", queue.account), ("QOS", queue.qos)) if value]
    )
    hint = "`sacctmgr show associations user=$USER` and `sacctmgr show qos` list the limits"
    return f"the limits of {who or 'your account'} do not allow it", hint


def _group(queue: QueueRequest, num_nodes: int, profile: Profile) -> tuple[str, str]:
    return f"you may not use partition `{queue.partition}`", "ask the site, or name another partition in `where`"


def _option(queue: QueueRequest, num_nodes: int, profile: Profile) -> tuple[str, str]:
    options = " ".join(queue.options)
    return (
        f"invalid option (the profile sets: {options or 'none'})",
        "correct `scheduler.options` in the profile",
    )


_REFUSALS: tuple[tuple[str, _Words], ...] = (
    (r"invalid partition|partition name", _partition),
    (r"invalid account", _account),
    (r"invalid qos", _qos),
    (r"MaxWall", _time),
    (r"policy|submit limit|MaxSubmit", _policy),
    (r"time limit|--time specification", _time),
    (r"group not permitted|permission denied", _group),
    (r"feature", _feature),
    (r"node name", _nodes),
    (r"unrecognized option|invalid option|unknown option", _option),
    (
        r"node configuration|memory specification|disk specification|gres|node count|processors requested|cpu count",
        _shape,
    ),
)
