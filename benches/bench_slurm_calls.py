"""How often windlass asks Slurm: `python benches/bench_slurm_calls.py [minutes of the real run]`.

Three counts of Slurm's programs (each is at least one call of its controller):

* real: chained jobs in the lab, whose programs note that they were called, over some minutes, while `windlass ps` looks
  once a minute;
* a link's life in the job, by the code that tends it (`LinkManager`), over a day of a clock that is wound by hand;
* a client that looks at 500 active runs, by `windlass ps` and by following all of them in one process, at a made-up
  Slurm that says that all of them run.

The budget counts what goes on all the time at 500 active jobs: the jobs' own looks, and one client that follows all.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from slurm_site import SITE, Bench, Verdicts, bench, head

from windlass import Options, launch
from windlass.core.clock import FakeClock
from windlass.core.process import Completed
from windlass.launcher.prepare import prepare_file
from windlass.launcher.reconcile.reconciler import reconcile_run
from windlass.record import events
from windlass.runs.home import Home
from windlass.runs.store import RunFolder
from windlass.supervise.chain.links import LinkManager
from windlass.supervise.gang.incarnation import Incarnation
from windlass.supervise.gang.journal_view import RunJournalView
from windlass.supervise.job import ChainConfig, JobDocument, JobPaths, ReplicaCommand
from windlass.supervise.slurm.job_listing import mark_of
from windlass.supervise.slurm.scheduler import SlurmScheduler

BUDGET_PER_JOB_MINUTE = 0.2
NUM_REAL, NUM_ACTIVE = 12, 500
MINUTES = 3.0
FOLLOW_EVERY_S, FOLLOWED_S = 5.0, 30.0
LIVES_S = (600.0, 3600.0, 86400.0)
PROGRAMS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo")
COUNTED = '#!/bin/sh\necho {program} >>{notes}\nexec {real} "$@"\n'
PRETENDED = "#!/bin/sh\necho {program} >>{notes}\n{answer}\n"


def main() -> int:
    """Print the counts and the budget; 1 when it is missed."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES
    with bench("calls") as place:
        print(head(place.lab))
        _count_real(place, minutes)
        lives = {life_s: _count_life(place.folder / f"life-{life_s:g}", life_s) for life_s in LIVES_S}
        per_minute = _count_client(place)
    print(f"\n{'a link of':<14}{'calls':>7}{'per minute':>12}   which")
    for life_s, counts in lives.items():
        which = ", ".join(f"{count} {program}" for program, count in sorted(counts.items()))
        print(f"{life_s / 60:>9g} min{counts.total():>8}{counts.total() / life_s * 60:>12.3f}   {which}")
    print()
    verdicts = Verdicts()
    in_job = lives[86400.0].total() / 86400.0 * 60
    label = f"calls per active job and minute at {NUM_ACTIVE} ({in_job:.3f} by the job)"
    verdicts.check(label, in_job + per_minute / NUM_ACTIVE, BUDGET_PER_JOB_MINUTE)
    return int(verdicts.num_missed > 0)


# --- real -----------------------------------------------------------------------------------------------------------


def _count_real(place: Bench, minutes: float) -> None:
    notes, programs = place.folder / "real.txt", place.folder / "counted"
    programs.mkdir()
    for program in (*PROGRAMS, "srun"):
        real = shutil.which(program)
        _write_program(programs / program, COUNTED.format(program=program, notes=notes, real=real))
    place.write_site(programs)
    spec = {"name": "busy", "tasks": {"t": {"run": "sleep 3600", "cpus": 1}}, "limit": {"time": "8h", "per_job": "2h"}}
    place.commit({"busy.yaml": json.dumps(spec)})
    for _ in range(NUM_REAL):
        place.windlass("launch", "busy.yaml", "--on", SITE, "--detach")
    while Counter(job.state for job in place.lab.queued().values())["RUNNING"] < NUM_REAL:
        time.sleep(0.1)
    time.sleep(20)  # the links after the next are queued some seconds later
    began = _read_notes(notes)
    deadline = time.monotonic() + 60 * minutes
    while time.monotonic() < deadline:
        place.windlass("ps")
        time.sleep(min(60.0, max(0.0, deadline - time.monotonic())))
    lived = _read_notes(notes) - began
    _stop_all(place)
    ended = _read_notes(notes) - began - lived
    print(f"\nreal: {NUM_REAL} chained jobs, {minutes:g} minutes, `windlass ps` once a minute")
    for label, counts in (("launch and start", began), ("while they ran", lived), ("stop", ended)):
        counts.pop("srun", None)
        which = ", ".join(f"{count} {program}" for program, count in sorted(counts.items())) or "none"
        print(f"  {label:<18}{counts.total() / NUM_REAL:>7.2f} per job   {which}")
    place.write_site()


def _stop_all(place: Bench) -> None:
    for path in sorted((place.home / "runs").glob("busy-*")):
        place.windlass("stop", path.name)
    place.wait_until_idle()


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _read_notes(path: Path) -> Counter[str]:
    return Counter(line for line in path.read_text().splitlines()) if path.exists() else Counter()


# --- a link's life --------------------------------------------------------------------------------------------------


class _Slurm:
    """Answers a link's questions and counts them; what was queued is listed as waiting."""

    def __init__(self, job: JobDocument, own: str) -> None:
        self.counts: Counter[str] = Counter()
        self._listed = [(own, "RUNNING", 1)]
        self._job = job

    def __call__(self, argv: Sequence[str], env: Mapping[str, str]) -> Completed:
        program = os.path.basename(argv[0])
        self.counts[program] += 1
        if program == "sbatch":
            link = int(argv[-1])
            self._listed.append((str(100 + link), "PENDING", link))
            return Completed(tuple(argv), 0, f"{100 + link}\n", "")
        rows = [_row(number, state, self._job.chain.mark, link) for number, state, link in self._listed]
        return Completed(tuple(argv), 0, "".join(rows) if program == "squeue" else "", "")


def _row(number: str, state: str, mark: str, link: int) -> str:
    fields = (number, state, "None", "N/A", "N/A", "n1", "name", f"windlass:{mark}.{link}")
    return "\x1e" + "\x1f".join(fields) + "\n"


def _count_life(folder: Path, life_s: float) -> Counter[str]:
    """The calls of a chain's first link from its start to its task's end, with those of the launch."""
    (folder / "jobs" / "t-1").mkdir(parents=True)
    chain = ChainConfig(
        scheduler="slurm", mode="successor", num_links=9, mark=mark_of("token"), submit=("sbatch", "${link}")
    )
    command = ReplicaCommand(("true",), cwd=str(folder))
    job = JobDocument("r-00000000", "t", 1, "token", command, JobPaths(str(folder)), chain=chain)
    clock, slurm = FakeClock(), _Slurm(job, "101")
    journal = RunJournalView(folder / "journal", "t", 0, clock, incarnation="101.0", on_record=lambda _: None)
    journal.append(events.JOB_INTENDED, job=1, token="token", backend="slurm", resets_budgets=True)
    scheduler = SlurmScheduler(job, environ={"SLURM_JOB_ID": "101"}, runner=slurm)
    start = Incarnation("101.0", 1, "101", began_at=clock.now())
    links = LinkManager(job, folder / "jobs" / "t-1", start, journal, scheduler=scheduler)
    links.queue_next(clock.monotonic())
    for _ in range(int(life_s)):
        clock.advance(1.0)
        links.tick(clock.monotonic())
    links.cancel_rest()
    links.end_job()
    return slurm.counts + Counter(sbatch=1)


# --- a client -------------------------------------------------------------------------------------------------------


def _count_client(place: Bench) -> float:
    """Calls a minute of one process that follows all runs; prints those of one `windlass ps` as well."""
    notes, programs, listing = (place.folder / name for name in ("client.txt", "pretended", "listing.txt"))
    programs.mkdir()
    answers = {"sbatch": f"wc -l <{notes}", "squeue": f"cat {listing}"}
    for program in PROGRAMS:
        answer = answers.get(program, ":")
        _write_program(programs / program, PRETENDED.format(program=program, notes=notes, answer=answer))
    shutil.rmtree(place.home / "runs")
    place.write_site(programs)
    os.environ.update({name: value for name, value in place.env.items() if name != "PATH"})
    home = Home(place.home)
    options = Options(on=SITE, allow_dirty=True)
    for _ in range(NUM_ACTIVE):
        launch(prepare_file(place.work / "busy.yaml", (), options, home=home))
    runs = [RunFolder(path) for path in sorted((place.home / "runs").glob("busy-*"))]
    rows = (
        _row(job.backend_id, "RUNNING", mark_of(job.token), 1)
        for run in runs
        for job in [run.facts().task("t").jobs[1]]
    )
    listing.write_text("".join(rows))
    before = _read_notes(notes)
    began = time.monotonic()
    place.windlass("ps")
    took_s, asked = time.monotonic() - began, _read_notes(notes) - before
    print(f"\nclient: one `windlass ps` over {NUM_ACTIVE} active runs: {asked.total()} calls, {took_s:.1f} s")
    before, began = _read_notes(notes), time.monotonic()
    while time.monotonic() < began + FOLLOWED_S:
        next_at = time.monotonic() + FOLLOW_EVERY_S
        for run in runs:
            reconcile_run(run, home)
        with suppress(ValueError):
            time.sleep(next_at - time.monotonic())
    asked, minutes = _read_notes(notes) - before, (time.monotonic() - began) / 60
    print(f"client: all {NUM_ACTIVE} followed in one process: {asked.total() / minutes:.1f} calls a minute")
    return asked.total() / minutes


if __name__ == "__main__":
    sys.exit(main())
