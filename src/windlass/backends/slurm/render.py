"""Batch script of a job: one for all its links, with the link's number as its argument.

Its options are those of sbatch(1). Nothing runs between the modules and the supervisors: `exec srun` replaces the batch
shell, so a signal for the batch shell (`--signal=B:USR1@N`) reaches every supervisor; srun(1), SIGNALS.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from windlass.backends.slurm.version import SlurmVersion
from windlass.supervise.gang.incarnation import OUTPUT, START_MARK
from windlass.supervise.job import JobDocument, QueueRequest
from windlass.supervise.slurm.job_listing import program_path
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
"""List file with one job per line: name, mark and folder, separated by spaces."""

SETUP_NOTE = "setup-failed.txt"
"""File beside job.json that says why links ended before a supervisor could run."""

FIND_MODULE = """\
command -v module >/dev/null || for each in "$LMOD_PKG/init/sh" "$MODULESHOME/init/sh" \\
  /etc/profile.d/lmod.sh /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/sh /usr/share/modules/init/sh; do
  if [ -r "$each" ]; then . "$each"; break; fi
done"""
"""Shell lines that define `module` if the profile names no file: a batch shell reads no start-up files, so it lacks it."""

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
"""Pauses before an array task tries again to set its name; they cover a restart of the controller."""


def site_folder(document: JobDocument, folder: Path) -> PurePath:
    """Return the path of the job's folder as the site sees it."""
    return PurePath(document.paths.run_dir) / "jobs" / folder.name


def submit_argv(document: JobDocument, folder: PurePath, mark: str, link: object) -> tuple[str, ...]:
    """Return the command line that queues a link; it contains the job's public mark, not its secret token."""
    return (*_sbatch(document, mark, link), str(folder / SCRIPT), str(link))


def first_argv(document: JobDocument, folder: PurePath, mark: str, *, is_array: bool = False) -> tuple[str, ...]:
    """Return the command line that queues link 1, which later links follow.

    It waits for the tasks before it, and for the job that builds its environment, without holding a node.

    Args:
        folder: the script's folder, as the site sees it.
        mark: the mark of the job or the array.
        is_array: whether it queues link 1 of many jobs with the array's script.
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
    """Return the batch script, exactly as it is submitted.

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
        *share_options(queue, document.num_replicas),
        *queue.options,
    ]
    begin = [f"name={shlex.quote(queue.name)}", f"folder={shlex.quote(str(folder))}", 'link="$1"']
    return _script(options, begin, [], document, archive, version)


def array_script(
    document: JobDocument, name: str, folder: PurePath, num_tasks: int, archive: PurePath, version: SlurmVersion
) -> str:
    """Return the script for an array of equal jobs: task i is link 1 of the job in line i of `ARRAY_LIST`.

    A task sets its job's name and mark when it starts, so that its later links wait for it and clients find it. A task
    that cannot do so fails: under the array's name a later link would start at the same time.

    Args:
        document: any of the jobs, which all make the same request.
        folder: folder of the list and the output.
    """
    queue = document.queue
    options = [
        f"--job-name={name}",
        f"--output={_literal(folder)}/slurm-%A_%a.out",
        "--open-mode=append",
        f"--array=1-{num_tasks}",
        *_how(document, waits=False),
        *where_options(queue),
        *share_options(queue, document.num_replicas),
        *queue.options,
    ]
    task = "JobId=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"  # the last task's id is that of the whole array
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
    """Return the path of the zipapp that a rendered script runs."""
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
    """Return shell lines that define `failed MESSAGE`, which ends the link and records the failure in the journal.

    If Python is missing, the message is only written to a note beside job.json, and queued links are cancelled.
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
    """Return shell lines that load modules; each ends the link if it fails."""
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
    """Return shell lines that define `module`; empty if the profile names a file that does."""
    if any(line.startswith(". ") for line in setup):
        return []
    return [FIND_MODULE, f"command -v module >/dev/null || failed {shlex.quote(_NO_MODULE)}"]


def _checked(line: str) -> list[str]:
    """Return shell lines that run `line` and end the link if it fails; old Tcl modules exit 0 for a missing module.

    `command` keeps `.` from ending the shell if the file is missing.
    """
    said = '"$(tail -n 5 "$said")"'
    failure = f"failed {shlex.quote(f'`{line}` failed: ')}{said}"
    if line.startswith(". "):
        return [f"command {line} || {failure}"]
    lines = [f"{{ {line}", f"}} || {failure}"]
    is_module = line.startswith(("module load ", "ml "))
    return [*lines, f"! grep -qi 'unable to locate' \"$said\" || {failure}"] if is_module else lines


def _step(document: JobDocument, version: SlurmVersion) -> str:
    """Return the line that starts one supervisor per node; one that exits does not end the others."""
    queue = document.queue
    argv = [
        program_path(document.chain.bin, "srun"),
        f"--nodes={document.num_replicas}",
        f"--ntasks={document.num_replicas}",
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
    """Escape a folder's path for a file name pattern; source: sbatch(1), FILENAME PATTERN."""
    return str(folder).replace("%", "%%")


_MIB = 1 << 20


def option_lines(options: Iterable[str]) -> list[str]:
    """Return the lines of a batch script that set these options."""
    return [f"#SBATCH {_quoted(option)}" for option in options]


def where_options(queue: QueueRequest) -> list[str]:
    """Return the options that say where a job may run and which account it uses."""
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


def share_options(queue: QueueRequest, num_nodes: int) -> list[str]:
    """Return the options for the number of nodes and the resources per node."""
    found = [f"--nodes={num_nodes}", "--ntasks-per-node=1"]
    if queue.cpus_per_node:
        found += [f"--cpus-per-task={queue.cpus_per_node}"]
    found += gpu_options(queue.gpus_per_node, queue.gpu_option, queue.gres_type)
    if queue.memory_bytes:
        found += [f"--mem={math.ceil(queue.memory_bytes / _MIB)}M"]
    if queue.tmp_bytes:
        found += [f"--tmp={math.ceil(queue.tmp_bytes / _MIB)}M"]
    return [*found, "--exclusive"] if queue.exclusive else found


def gpu_options(per_node: int, option: str, gres_type: str) -> list[str]:
    """Return the options that request GPUs in the site's form; see `QueueRequest.gpu_option`."""
    if not per_node or option == "none":
        return []
    name = "gres=gpu:" if option == "gres" else "gpus-per-node="
    return [f"--{name}{gres_type}{':' if gres_type else ''}{per_node}"]


def time_option(seconds: float) -> list[str]:
    """Return the option for a walltime, in minutes rounded up as Slurm does (sbatch(1), --time); empty for 0."""
    hours, minutes = divmod(math.ceil(seconds / 60), 60)
    days, hours = divmod(hours, 24)
    return [f"--time={days}-{hours:02}:{minutes:02}:00"] if seconds else []


def _quoted(option: str) -> str:
    """Quote an option for the script; sbatch accepts spaces inside double quotes."""
    name, equals, value = option.partition("=")
    if not any(letter in value for letter in " \t\"'\\#"):
        return option
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}{equals}"{escaped}"'
