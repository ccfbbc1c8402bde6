"""A stage on the lab's Slurm: a site profile whose limits are short, and eyes for the queue."""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path
from typing import Any

from tests.lab.slurm import LOGIN, SlurmLab
from tests.system.stage import Stage, living, until
from windlass import Options, Run
from windlass.core.process import send_signal
from windlass.runs.home import Home

__all__ = ["FAR", "SITE", "SlurmStage"]

SITE = "lab"
FAR = f"root@{LOGIN}"

_PROFILE = """\
name: {name}
about: four virtual nodes with four fake GPUs each
scheduler:
  version: 22.05.8
  partition: main
  accounting: {accounting}
  kill_wait: 5s
  priority: {priority}
partitions:
  main: {{num_nodes: 4, gpus: 4, gpu_type: fake, cpus: 8, memory: 8000MiB, time_max: 24h}}
  low: {{num_nodes: 4, gpus: 4, cpus: 8, memory: 8000MiB, time_max: 24h, is_preempted: true, notice: 5s}}
  lowcancel: {{num_nodes: 4, gpus: 4, cpus: 8, memory: 8000MiB, time_max: 24h, is_preempted: true, notice: 5s}}
  short: {{num_nodes: 4, gpus: 4, cpus: 8, memory: 8000MiB, time_max: 2m}}
net: {{interconnect: ethernet}}
fs: {{shared: "{shared}", stall: 12s}}
env: {{python: "{python}"}}
"""
"""`fs.stall` is short, so that a successor waits ten seconds for a predecessor that is out of reach, and not 150."""


class SlurmStage(Stage):
    """Runs experiments on the site `lab`."""

    def __init__(self, folder: Path, home: Home, lab: SlurmLab) -> None:
        super().__init__(folder, home)
        self.lab = lab
        self.write_site()

    def write_site(self, **changes: str) -> None:
        """Write the site's profile; `changes` replace texts in it."""
        has_accounting = self.lab.options.has_accounting
        text = _PROFILE.format(
            name=SITE,
            accounting=str(has_accounting).lower(),
            priority="{high: {qos: high}, low: {qos: low}}" if has_accounting else "{low: {partition: low}}",
            shared=self.home.path,
            python=sys.executable,
        )
        for old, new in changes.items():
            text = text.replace(old, new)
        path = self.home.path / "sites" / f"{SITE}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def write_far_site(self, shared: Path | str, **changes: str) -> None:
        """The same profile for a site that is reached over ssh; `shared` is its shared folder."""
        self.write_site(**{f'shared: "{self.home.path}"': f'shared: "{shared}"'}, **changes)
        with (self.home.path / "sites" / f"{SITE}.yaml").open("a") as file:
            file.write(f"ssh: {FAR}\n")

    def start(self, spec: dict[str, Any], *overrides: str, name: str = "play", on: str = SITE, **options: Any) -> Run:
        """Launch an experiment on the site."""
        return self.launch(spec, *overrides, name=name, options=Options(allow_dirty=True, on=on, **options))

    def story(self, run: Run) -> str:
        """Beside the run's own: what of it lives and in which state, the queue, the nodes, what the controller says."""
        parts = [
            super().story(run),
            *(f"process {pid} {_state(pid)}: {line}" for pid, line in sorted(self.inhabitants(run).items())),
            *(path.read_text(errors="replace") for path in sorted(run.folder.jobs.rglob("slurm-*.out"))),
            self.lab.story(),
        ]
        return "\n".join(parts)

    def inhabitants(self, run: Run) -> dict[int, str]:
        """Command lines of the run's processes on all nodes, ours and the user's, by this machine's numbers."""
        found = living(str(run.folder.path))
        programs = {pid: line.split(" ")[0].rpartition("/")[2] for pid, line in found.items()}
        return {pid: line for pid, line in found.items() if not programs[pid].startswith(("srun", "slurm"))}

    def kill_one(self, run: Run, die: random.Random) -> str:
        """SIGKILL any one of the run's processes; returns its command line."""
        until(lambda: bool(self.inhabitants(run)), f"{run.id} has processes")
        pid, line = die.choice(sorted(self.inhabitants(run).items()))
        send_signal(pid, signal.SIGKILL)
        return line

    def freeze(self, run: Run) -> None:
        """SIGSTOP all of the run's processes."""
        for pid in self.inhabitants(run):
            send_signal(pid, signal.SIGSTOP)

    def queue(self) -> dict[str, str]:
        """State by id of every job in the queue."""
        rows = self.lab.command("squeue", "--noheader", "--format=%i|%T").split()
        return dict(row.split("|", 1) for row in rows)

    def wait_until_queue_is_empty(self) -> None:
        """No job is left."""
        until(lambda: not self.queue(), "the queue is empty", story=self.lab.story, poll_s=0.1)

    def job_ids(self, run: Run, task: str = "main") -> list[str]:
        """Slurm's ids of the links that have begun, in order."""
        jobs = run.facts.task(task).jobs
        return [
            jobs[number].links[link].backend_id
            for number in sorted(jobs)
            for link in sorted(jobs[number].links)
            if jobs[number].links[link].started_at
        ]


def _state(pid: int) -> str:
    """Such as `S` or `T`; source: proc(5), /proc/pid/stat."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
