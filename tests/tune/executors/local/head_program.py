"""A head that can be killed: it opens the local executor, starts two trials and answers them until its end.

python -m tests.tune.executors.local.head_program FOLDER OPTIONS_JSON CONFIG_JSON
"""

from __future__ import annotations

import json
import sys

from windlass.testing.executor_conformance import ExecutorBench
from windlass.testing.sample_trainables import Counter, act
from windlass.tune.executors.local import Local
from windlass.tune.executors.protocol import AttemptReported, AttemptStarted, Go, Work


def main() -> None:
    folder, options, config = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    executor = Local()
    trainable = Counter if "by" in config else act
    work = Work(
        trainable=trainable, name="sweep", folder=folder, storage=f"{folder}/checkpoints", num_slots=2, options=options
    )
    executor.open(work)
    bench = ExecutorBench(executor, work)
    trials = ("00000", "00001")
    for trial in trials:
        bench.start(trial, config=config)
    pids = [bench.wait_for(AttemptStarted, trial).pid for trial in trials]
    for trial in trials:
        bench.wait_for(AttemptReported, trial)
    assert executor._template is not None
    sys.stdout.write(json.dumps({"workers": pids, "template": executor._template.pid}) + "\n")
    sys.stdout.flush()
    for trial in trials:
        executor.send(Go(trial=trial, attempt=1))
    while True:
        for event in executor.poll(1.0):
            if isinstance(event, AttemptReported):
                executor.send(Go(trial=event.trial, attempt=1))


if __name__ == "__main__":
    main()
