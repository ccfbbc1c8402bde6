"""A stage at the fake Beaker: a site whose jobs see a bucket under the path that this machine sees it by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.system.stage import Stage
from windlass import Options, Run
from windlass.runs.home import Home
from windlass.testing.beaker import FakeBeaker
from windlass.testing.beaker.records import StoredExperiment

__all__ = ["SITE", "BeakerStage"]

SITE = "lab"

_PROFILE = """\
name: lab
kind: beaker
about: a fake Beaker on this machine
fs: {{shared: "{shared}", stall: 6s}}
beaker:
  workspace: lab/main
  clusters: [lab/alpha]
  image: beaker:me/image
  mounts: [{{path: "{shared}", weka: {bucket}}}]
partitions:
  lab/alpha: {{gpus: 8, gpu_type: fake, notice: 5s}}
  lab/beta: {{gpus: 4, gpu_type: fake}}
net: {{interface: lo, interconnect: none}}
"""
"""`fs.stall` is short, so that a start waits five seconds for one that is out of reach, and not 150."""


class BeakerStage(Stage):
    """Runs experiments on the site `lab`; code and WINDLASS_HOME are on the bucket."""

    def __init__(self, folder: Path, home: Home, fake: FakeBeaker, bucket: str) -> None:
        super().__init__(folder, home)
        self.fake = fake
        path = self.home.path / "sites" / f"{SITE}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(_PROFILE.format(shared=fake.weka(bucket), bucket=bucket))

    def start(self, spec: dict[str, Any], *overrides: str, name: str = "play", on: str = SITE) -> Run:
        """Launch an experiment on the site."""
        return self.launch(spec, *overrides, name=name, options=Options(allow_dirty=True, on=on))

    def experiment_of(self, run: Run, task: str = "main") -> StoredExperiment:
        """The experiment of a task's newest job."""
        job = run.facts.task(task).jobs[run.facts.task(task).newest_job]
        return self.fake.experiment(job.backend_id)

    def finish(self, run: Run, task: str = "main") -> str:
        """Beaker's word on the experiment once it is over there as well."""
        return self.fake.wait(self.experiment_of(run, task)).status.name

    def story(self, run: Run) -> str:
        """Beside the run's own: what the jobs printed at Beaker."""
        printed = [
            f"--- job {job.id} of rank {job.task.rank}, {job.status.name}\n{job.text}"
            for experiment in self.fake.experiments
            for job in experiment.jobs
        ]
        return "\n".join([super().story(run), *printed])
