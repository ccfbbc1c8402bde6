"""Recovery of lost journal records from verdicts, manifests, logs and job folders.

A journal file that was emptied, truncated or removed looks like one that its writer has not continued yet. Therefore,
before a task without an end counts as open, the verdict in its job's folder and the manifest in `out`, which exists
only after success, are checked. Before a client acts on a task, its jobs and attempts are compared with their folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from windlass.core.errors import WindlassError
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.frames import Record, read_frames
from windlass.record.journal import SUFFIX, JournalReader
from windlass.record.manifest import manifest_path, read_manifest
from windlass.record.state import RunFacts, State, TaskFacts
from windlass.record.verdict import VERDICT, read_verdict

__all__ = ["complete", "missing_records"]

_JOB = re.compile(r"(.+)-([0-9]+)")
_WRITER = "recovery"


def complete(path: Path, facts: RunFacts, reader: JournalReader) -> None:
    """Restore missing ends of tasks from other files, and note the damage. Takes two stats per task.

    Args:
        path: the run's folder.
        reader: the reader of `facts`; it reads again, bypassing caches of a network file system, before anything
            counts as missing.
    """
    names = _open_tasks(path, facts)
    if not any(_has_end_file(path, facts.tasks.get(name), name) for name in names):
        return
    for record in reader.poll(is_fresh=True):
        facts.apply(record)
    for name in _open_tasks(path, facts):
        _complete_task(path, facts, name)


def missing_records(path: Path, facts: RunFacts) -> list[str]:
    """Describe the records that are missing in the journal, judging by the run's folder.

    Files of running jobs can be ahead of the journal: call it only after the jobs are gone.
    """
    found = list(facts.damage)
    if facts.num_damaged:
        found.append(f"journal/: {facts.num_damaged} damaged records were skipped")
    for name, task in sorted(facts.tasks.items()):
        found += [
            line for line in _cut_behind_verdict(path, task) if not any(noted.startswith(line) for noted in found)
        ]
        if task.state is State.SUCCEEDED and name not in facts.outputs and _lacks_outputs(path, name):
            manifest = manifest_path(path / "out" / name, is_beside=True).name
            found.append(f"{_files(path, name)}: no record of the outputs of {name}, which out/{manifest} lists")
        newest = max(task.attempts, default=0)
        found += [
            f"{_files(path, name)}: no record of attempt {number}, whose log is in logs/{number}/{name}"
            for number in _logged_attempts(path, name)
            if number > newest
        ]
    for name, number in _job_folders(path):
        is_ours = name in facts.tasks or not facts.run
        if is_ours and (name not in facts.tasks or number not in facts.tasks[name].jobs):
            found.append(f"journal/client-*{SUFFIX}: no record of job {number} of {name}, whose folder is in jobs/")
    return found


def _open_tasks(path: Path, facts: RunFacts) -> list[str]:
    """Return the tasks without a recorded end, found by job folders if the run's record is lost."""
    if facts.run:
        return [name for name, task in facts.tasks.items() if task.end is None]
    names = dict.fromkeys([*facts.tasks, *(name for name, _ in _job_folders(path))])
    return [name for name in names if name not in facts.tasks or facts.tasks[name].end is None]


def _has_end_file(path: Path, task: TaskFacts | None, name: str) -> bool:
    return _verdict_of(path, task, name) is not None or manifest_path(path / "out" / name, is_beside=True).exists()


def _verdict_of(path: Path, task: TaskFacts | None, name: str) -> Record | None:
    """Return the copy of the newest job's verdict, or None."""
    number = task.newest_job if task is not None else 0
    if not number:
        number = max((number for found, number in _job_folders(path) if found == name), default=0)
    folder = path / "jobs" / f"{name}-{number}"
    return read_verdict(folder) if (folder / VERDICT).exists() else None


def _complete_task(path: Path, facts: RunFacts, name: str) -> None:
    verdict = _verdict_of(path, facts.tasks.get(name), name)
    if verdict is not None:
        facts.apply(verdict)
        facts.damage.append(
            f"{_shortage(path, verdict)}; the verdict of {name} is from jobs/{name}-{verdict.data['job']}/{VERDICT}"
        )
    manifest = manifest_path(path / "out" / name, is_beside=True)
    if not manifest.exists() or (verdict is not None and verdict.data["verdict"] != str(State.SUCCEEDED)):
        return
    _take_outputs(path, facts, name)
    if verdict is not None:
        return
    job = max((number for found, number in _job_folders(path) if found == name), default=1)
    data = {
        "task": name,
        "job": job,
        "attempt": 0,
        "verdict": str(State.SUCCEEDED),
        "cause": str(Cause.OK),
        "message": "",
    }
    facts.apply(Record(events.TASK_ENDED, _WRITER, 1, manifest.stat().st_mtime, data))
    facts.damage.append(
        f"{_files(path, name)}: no record of the end of {name}; out/{manifest.name} shows that it succeeded"
    )


def _take_outputs(path: Path, facts: RunFacts, name: str) -> None:
    """Restore the record of a task's outputs from the manifest, which exists only after a success."""
    if name in facts.outputs:
        return
    try:
        manifest = read_manifest(path / "out" / name, is_beside=True)
    except (WindlassError, OSError):
        return  # `windlass verify` reports the problem
    data = {
        "task": name,
        "attempt": 0,
        "num_files": len(manifest.entries),
        "bytes": manifest.num_bytes,
        "digest": manifest.digest,
    }
    facts.apply(Record(events.OUTPUTS, _WRITER, 1, 0.0, data))


def _lacks_outputs(path: Path, name: str) -> bool:
    """Return whether an output manifest exists without a record, after reading the journal again."""
    if not manifest_path(path / "out" / name, is_beside=True).exists():
        return False
    records = JournalReader(path / "journal", skip=(events.METRICS,)).poll(is_fresh=True)
    return not any(record.kind == events.OUTPUTS and record.data["task"] == name for record in records)


def _cut_behind_verdict(path: Path, task: TaskFacts) -> Iterator[str]:
    """Yield a description of a journal file that is shorter than when its task ended."""
    verdict = _verdict_of(path, task, task.name)
    if verdict is not None and _num_records(path, verdict.writer) < verdict.seq:
        yield _shortage(path, verdict)


def _shortage(path: Path, verdict: Record) -> str:
    """Describe a truncated file: `journal/train.0.wj: 3 of its 17 records are left`."""
    file, num_left = path / "journal" / (verdict.writer + SUFFIX), _num_records(path, verdict.writer)
    what = "the file is missing" if not file.exists() else f"{num_left} of its {verdict.seq} records are left"
    return f"journal/{file.name}: {what}"


def _num_records(path: Path, writer: str) -> int:
    try:
        return len(read_frames((path / "journal" / (writer + SUFFIX)).read_bytes())[0])
    except OSError:
        return 0


def _files(path: Path, task: str) -> str:
    """Return the names of the journal files of a task's supervisors, or of the missing one."""
    names = sorted(found.name for found in (path / "journal").glob(f"{task}.*{SUFFIX}"))
    return ", ".join(f"journal/{name}" for name in names) or f"journal/{task}.0{SUFFIX} is missing"


def _logged_attempts(path: Path, task: str) -> list[int]:
    folders = (path / "logs").glob(f"*/{task}")
    return sorted(int(found.parent.name) for found in folders if found.parent.name.isdecimal())


def _job_folders(path: Path) -> list[tuple[str, int]]:
    try:
        names = sorted(found.name for found in (path / "jobs").iterdir() if found.is_dir())
    except OSError:
        return []
    matches = [_JOB.fullmatch(name) for name in names]
    return [(found[1], int(found[2])) for found in matches if found is not None]
