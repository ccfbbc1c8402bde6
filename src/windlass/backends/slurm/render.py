"""The batch script of a job: one for all its links, with the link's number as its argument.

Its options are sbatch(1)'s. Between the modules and the supervisors nothing happens: `exec srun` makes the batch shell
srun itself, so a signal for the batch shell (`--signal=B:USR1@N`) reaches every supervisor; srun(1), SIGNALS.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from windlass.backends.slurm.version import SlurmVersion
from windlass.supervise.gang.incarnation import OUTPUT, START_MARK
from windlass.supervise.job import JobDocument, QueueRequest
from windlass.supervise.slurm.jobs import program_path
from windlass.supervise.slurm.scheduler import PATH_BEFORE_SETUP, comment_of

__all__ = [
    "ARRAY_LIST",
    "ARRAY_SCRIPT",
    "FIND_MODULE",
    "SCRIPT",
    "SETUP_NOTE",
    "archive_of",
    "array_script",
    "first_argv",
    "gpu_options",
    "job_script",
    "option_lines",
    "share_options",
    "site_folder",
    "submit_argv",
    "time_option",
    "where_options",
]

SCRIPT = "job.sbatch"
ARRAY_SCRIPT = "array.sbatch"
ARRAY_LIST = "array.txt"
"""A job per line: its name, its mark and its folder, between blanks."""

SETUP_NOTE = "setup-failed.txt"
"""Beside job.json: why links end before any supervisor of ours could run."""

FIND_MODULE = """\
command -v module >/dev/null || for each in "$LMOD_PKG/init/sh" "$MODULESHOME/init/sh" \\
  /etc/profile.d/lmod.sh /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/sh /usr/share/modules/init/sh; do
  if [ -r "$each" ]; then . "$each"; break; fi
done"""
"""Shell lines that look for `module` where the profile names no file: a batch shell reads no start-up files, and has none."""

_NO_MODULE = (
    "there is no `module` command on this node, and the profile names modules: "
    "`env.module_init` is the shell file that defines it"
)
_FORBID_MODULE = (
    'forbid_module() { case ":$LOADEDMODULES:" in *":$1:"*|*":$1/"*) '
    'echo "it is loaded, and env.modules_forbidden of the profile names it: something in env.modules loads it" >&2; '
    "return 1;; esac; }"
)
_SETUP_FAILED = 76
_PAUSES_S = (1, 2, 4, 8, 16, 32)
"""Before a task of an array asks again for its own name; a controller that is started anew is away for so long."""


def site_folder(document: JobDocument, folder: Path) -> PurePath:
    """The job's folder as the site sees it."""
    return PurePath(document.run_dir) / "jobs" / folder.name


def submit_argv(document: JobDocument, folder: PurePath, mark: str, link: object) -> tuple[str, ...]:
    """The command line that queues a link; the mark is all that the scheduler learns of the job's token."""
    return (*_sbatch(document, mark, link), str(folder / SCRIPT), str(link))


def first_argv(document: JobDocument, folder: PurePath, mark: str, *, is_array: bool = False) -> tuple[str, ...]:
    """The command line that queues link 1, which later links come behind.

    It waits for the tasks before it, and for the job that builds its environment, without holding a node.

    Args:
        folder: where the script is, as the site sees it.
        mark: of the job, or of the array.
        is_array: whether it queues link 1 of many jobs, by the array's script.
    """
    queue = document.queue
    waits = ["--hold"] if queue.hold else []
    if queue.build_job:
        others = "" if is_array or document.chain.mode != "successor" else "singleton,"  # what the script says is lost
        waits += [f"--dependency={others}afterany:{queue.build_job}"]
    script = [str(folder / ARRAY_SCRIPT)] if is_array else [str(folder / SCRIPT), "1"]
    return (*_sbatch(document, mark, 1), *waits, *script)


def _sbatch(document: JobDocument, mark: str, link: object) -> tuple[str, ...]:
    return (program_path(document.chain.bin, "sbatch"), "--parsable", f"--comment={comment_of(mark, link)}")


def job_script(document: JobDocument, folder: PurePath, archive: PurePath, version: SlurmVersion) -> str:
    """The script, byte for byte as it is submitted.

    Args:
        folder: the job's folder as the site sees it.
        archive: the zipapp as the site sees it.
    """
    queue = document.queue
    options = [
        f"--job-name={queue.name}",
        f"--output={_literal(folder)}/slurm-%j.out",
        "--open-mode=append",
        *_how(document),
        *where_options(queue),
        *share_options(queue),
        *queue.options,
    ]
    begin = [f"name={shlex.quote(queue.name)}", f"folder={shlex.quote(str(folder))}", 'link="$1"']
    return _script(options, begin, [], document, archive, version)


def array_script(
    document: JobDocument, name: str, folder: PurePath, num_tasks: int, archive: PurePath, version: SlurmVersion
) -> str:
    """Return the script of an array of jobs of one shape: task i is link 1 of the job in line i of `ARRAY_LIST`.

    A task takes its job's name and mark when it starts, so that its later links wait for it and everybody finds it. One
    that cannot fails: under the array's name a later link would start beside it.

    Args:
        document: one of the jobs; what it asks for, they all do.
        folder: where the list and the output are.
    """
    queue = document.queue
    options = [
        f"--job-name={name}",
        f"--output={_literal(folder)}/slurm-%A_%a.out",
        "--open-mode=append",
        f"--array=1-{num_tasks}",
        *_how(document, waits=False),
        *where_options(queue),
        *share_options(queue),
        *queue.options,
    ]
    task = "JobId=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"  # the last task's own number is that of the whole array
    scontrol = shlex.quote(program_path(document.chain.bin, "scontrol"))
    update = f'{scontrol} update "{task}" "Name=$name" "Comment={comment_of("$mark", 1)}"'
    begin = [
        f'line=$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" {shlex.quote(str(folder / ARRAY_LIST))})',
        "name=${line%% *} line=${line#* }",
        "mark=${line%% *} folder=${line#* } link=1",
        f'{OUTPUT}={shlex.quote(str(folder))}/slurm-"$SLURM_ARRAY_JOB_ID"_"$SLURM_ARRAY_TASK_ID".out',
        f"export {OUTPUT}",
    ]
    naming = [
        f"for pause_s in {' '.join(map(str, _PAUSES_S))} none; do",
        f"  said=$({update} 2>&1) && break",
        '  [ $pause_s != none ] || failed "the job could not take its name in Slurm: $said"',
        "  sleep $pause_s",
        "done",
    ]
    return _script(options, begin, naming, document, archive, version)


def archive_of(script: str) -> PurePath:
    """The zipapp that a script of ours runs."""
    (line,) = (line for line in script.splitlines() if line.startswith("archive="))
    return PurePath(shlex.split(line.removeprefix("archive="))[0])


def _script(
    options: list[str],
    begin: list[str],
    naming: list[str],
    document: JobDocument,
    archive: PurePath,
    version: SlurmVersion,
) -> str:
    lines = ["#!/bin/sh", *option_lines(options), *begin]
    lines += [f"python={shlex.quote(document.queue.python)}", f"archive={shlex.quote(str(archive))}"]
    lines += [f"{PATH_BEFORE_SETUP}=$PATH", f"{START_MARK}=$(uname -n)/$PPID/$$/$(date +%s)"]
    lines += [f"export {PATH_BEFORE_SETUP} {START_MARK}"]
    lines += ["trap : USR1  # a notice that comes during the setup must not kill this shell", ""]
    lines += [*_failing(document), *naming, *_setup(document), "", _step(document, version), ""]
    return "\n".join(lines)


def _how(document: JobDocument, *, waits: bool = True) -> list[str]:
    queue, is_requeued = document.queue, document.chain.mode == "requeue"
    found = ["--requeue" if is_requeued else "--no-requeue", "--export=ALL"]
    if waits and document.chain.mode == "successor":
        found += ["--dependency=singleton"]
    found += time_option(queue.time_s)
    if queue.signal_before_s:
        found += [f"--signal=B:USR1@{math.ceil(queue.signal_before_s)}"]
    return found


def _failing(document: JobDocument) -> list[str]:
    """Lines that make `failed WORDS`, which ends the link; the journal hears of it by our `failed`.

    Where even Python is missing, a note beside job.json is all that can be said, and what is queued is cancelled.
    """
    cancel = f'{shlex.quote(program_path(document.chain.bin, "scancel"))} --state=PENDING --name="$name"'
    return [
        "failed() {",
        '  echo "$1"',
        f'  "$python" -I -S "$archive" failed "$folder" "$link" setup-failed "$1" && exit {_SETUP_FAILED}',
        f'  printf "%s\\n" "$1" >"$folder/{SETUP_NOTE}"',
        f"  {cancel}",
        f"  exit {_SETUP_FAILED}",
        "}",
    ]


def _setup(document: JobDocument) -> list[str]:
    """Lines that make modules, each of which ends the link when it fails."""
    lines: list[str] = []
    if document.queue.setup:
        lines += ['said=$(mktemp) || said="$folder/setup-$SLURM_JOB_ID.log"', 'exec 3>&2 2>"$said"']
        if any(line.startswith("forbid_module ") for line in document.queue.setup):
            lines += [_FORBID_MODULE]
        if any(map(_is_module, document.queue.setup)):
            lines += _finding_module(document.queue.setup)
        for line in document.queue.setup:
            lines += _checked(line)
        lines += ["exec 2>&3 3>&-", 'cat "$said" >&2', 'rm -f "$said"']
    missing = shlex.quote(f"there is no `{document.queue.python}` on this node")
    return [*lines, f'command -v "$python" >/dev/null || failed {missing}']


def _is_module(line: str) -> bool:
    return line.startswith(("module ", "ml "))


def _finding_module(setup: Sequence[str]) -> list[str]:
    """Lines without which there may be no `module`; a file that the profile names is what counts."""
    if any(line.startswith(". ") for line in setup):
        return []
    return [FIND_MODULE, f"command -v module >/dev/null || failed {shlex.quote(_NO_MODULE)}"]


def _checked(line: str) -> list[str]:
    """A line that ends the link when it fails; Tcl modules of old answer 0 for a module that they do not find.

    `command` takes from `.` the right to end the shell when there is no such file.
    """
    said = '"$(tail -n 5 "$said")"'
    failure = f"failed {shlex.quote(f'`{line}` failed: ')}{said}"
    if line.startswith(". "):
        return [f"command {line} || {failure}"]
    lines = [f"{{ {line}", f"}} || {failure}"]
    is_module = line.startswith(("module load ", "ml "))
    return [*lines, f"! grep -qi 'unable to locate' \"$said\" || {failure}"] if is_module else lines


def _step(document: JobDocument, version: SlurmVersion) -> str:
    """Return the step that starts one supervisor per node; the exit of one ends no other, the leader decides."""
    queue = document.queue
    argv = [
        program_path(document.chain.bin, "srun"),
        f"--nodes={queue.nodes}",
        f"--ntasks={queue.nodes}",
        "--ntasks-per-node=1",
        *([f"--cpus-per-task={queue.cpus_per_node}"] if queue.cpus_per_node else []),
        *(["--overlap"] if version.has_overlap else []),
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--mpi=none",
        "--cpu-bind=none",
        "--input=none",
        "--label",
        "--export=ALL",
    ]
    return f'exec {shlex.join(argv)} "$python" -I -S "$archive" link "$folder" "$link"'


def _literal(folder: PurePath) -> str:
    """A folder for a file name pattern; sbatch(1), FILENAME PATTERN."""
    return str(folder).replace("%", "%%")


_MIB = 1 << 20


def option_lines(options: Iterable[str]) -> list[str]:
    """The lines of a batch script that say these options."""
    return [f"#SBATCH {_quoted(option)}" for option in options]


def where_options(queue: QueueRequest) -> list[str]:
    """Return the options for where a job may run, and on whose account."""
    words = {
        "partition": queue.partition,
        "qos": queue.qos,
        "account": queue.account,
        "nice": str(queue.nice or ""),
        "nodelist": ",".join(queue.nodelist),
        "exclude": ",".join(queue.exclude),
        "constraint": queue.constraint,
    }
    return [f"--{name}={value}" for name, value in words.items() if value]


def share_options(queue: QueueRequest) -> list[str]:
    """Return the options for the number of nodes and the share of each."""
    found = [f"--nodes={queue.nodes}", "--ntasks-per-node=1"]
    if queue.cpus_per_node:
        found += [f"--cpus-per-task={queue.cpus_per_node}"]
    found += gpu_options(queue.gpus_per_node, queue.gpu_option, queue.gres_type)
    if queue.memory_bytes:
        found += [f"--mem={math.ceil(queue.memory_bytes / _MIB)}M"]
    if queue.tmp_bytes:
        found += [f"--tmp={math.ceil(queue.tmp_bytes / _MIB)}M"]
    return [*found, "--exclusive"] if queue.exclusive else found


def gpu_options(per_node: int, option: str, gres_type: str) -> list[str]:
    """Return the options that request GPUs, as the site wants it; see `QueueRequest.gpu_option`."""
    if not per_node or option == "none":
        return []
    name = "gres=gpu:" if option == "gres" else "gpus-per-node="
    return [f"--{name}{gres_type}{':' if gres_type else ''}{per_node}"]


def time_option(seconds: float) -> list[str]:
    """A walltime in whole minutes, rounded up as Slurm does (sbatch(1), --time); 0: nothing is said."""
    hours, minutes = divmod(math.ceil(seconds / 60), 60)
    days, hours = divmod(hours, 24)
    return [f"--time={days}-{hours:02}:{minutes:02}:00"] if seconds else []


def _quoted(option: str) -> str:
    """An option as a line of the script says it; sbatch takes blanks between double quotes."""
    name, equals, value = option.partition("=")
    if not any(letter in value for letter in " \t\"'\\#"):
        return option
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}{equals}"{escaped}"'
