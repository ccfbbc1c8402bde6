"""Six steps from nothing to the full run, each proving what the next one takes for granted; stops at the first failure.

    python ladder.py SITE [--stand-in] [--from STEP] [--to STEP] [OVERRIDE ...]

    environment   one node: the environment is built, everything imports, all GPUs are there
    allreduce     two nodes reach one another, and sum right
    one-node      Ray, learners, engines, rewards and checkpoints, on a small model
    two-nodes     the same over two nodes
    resume        the same, killed after ten steps: it goes on from its checkpoint
    full          experiment.yaml as it is; watched until its first checkpoint, then it goes on alone

Every step is an ordinary run of experiment.yaml with overrides: `windlass ps`, `show` and `logs` know it.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from windlass import Options, launch, load
from windlass.core.errors import WindlassError
from windlass.record.state import State

HERE = Path(__file__).parent
EXPERIMENT = HERE / "experiment.yaml"
LOOK_EVERY_S = 5.0
IMPORTS = ["ray", "torch", "deepspeed", "vllm", "transformers"]
PLAIN = ["tasks.train.cluster=none", "~tasks.train.bundles", "~limit.per_job", "~limit.jobs", "limit.time=1h"]
"""For the steps that run a check instead of the program."""


class NotProvedError(Exception):
    """A step did not show what it was to show."""


@dataclass
class Climb:
    """What one ladder is about."""

    options: Options
    is_stand_in: bool
    overrides: list
    digests: dict = field(default_factory=dict)

    def start(self, *overrides):
        """Launch experiment.yaml with this step's overrides after the user's own."""
        stand_in = words("stand-in.txt") if self.is_stand_in else []
        run = launch(load(EXPERIMENT, [*stand_in, *self.overrides, *overrides], self.options), log=say)
        say(f"{run.id}: windlass logs {run.id} --follow")
        return run

    def finish(self, *overrides):
        """Launch, and wait until it has succeeded."""
        return ended(self.start(*overrides))

    def check(self, command, *overrides):
        """Run a check in place of the program, which leaves its parameters without a use; returns its proof."""
        own = [word for word in self.overrides if not word.lstrip("-~").startswith("params.")]
        run = launch(load(EXPERIMENT, [*own, *PLAIN, f"tasks.train.run={command}", *overrides], self.options), log=say)
        say(f"{run.id}: windlass logs {run.id} --follow")
        return read(ended(run), "proof.json")

    def program(self):
        """The program that the run line starts."""
        return "stand_in/grpo_fast.py" if self.is_stand_in else "open_instruct/grpo_fast.py"


def words(name):
    """The overrides in a file, one per line."""
    return (HERE / name).read_text().split("\n")[:-1]


def say(line):
    print(f"    {line}", flush=True)


def ended(run):
    """The run, once it has succeeded."""
    if run.wait() is not State.SUCCEEDED:
        raise NotProvedError(f"{run.id} {run.state}: {run.facts.cause}; windlass show {run.id} says more")
    return run


def read(run, name):
    """A JSON file that the task left."""
    return json.loads((run.fetch_output("train") / name).read_text())


def environment(climb):
    imports = IMPORTS[:1] if climb.is_stand_in else IMPORTS
    found = climb.check(f"python checks/environment.py {' '.join(imports)}", "tasks.train.nodes=1")
    return ", ".join(f"{name} {version}" for name, version in found.items())


def allreduce(climb):
    found = climb.check("python checks/allreduce.py", "tasks.train.nodes=2")
    speed = f", {found['gb_per_s']:.2f} GB/s" if found["gb_per_s"] else ""
    return f"{' and '.join(found['hosts'])} sum right through {found['how']}{speed}"


def one_node(climb):
    return trained(climb, climb.finish(*words("one-node.txt")))


def two_nodes(climb):
    return trained(climb, climb.finish(*words("one-node.txt"), "tasks.train.nodes=2"))


def saved(run):
    """Names of checkpoints: what the program reported, and what its folder showed."""
    task = run.facts.task("train")
    return ", ".join(sorted(task.entries | {Path(task.last_checkpoint.path).name} - {""}))


def trained(climb, run):
    """What a run that went to its end left: checkpoints, and of the stand-in a digest."""
    if not saved(run):
        raise NotProvedError(f"{run.id} ended well and left no checkpoint")
    if not climb.is_stand_in:
        return f"saved {saved(run)}"
    found, placed = read(run, "models/result.json"), read(run, "models/placement.json")
    climb.digests[len(placed["learners"])] = found["digest"]
    if len(set(climb.digests.values())) > 1:
        raise NotProvedError(f"the result depends on the number of nodes: {climb.digests}")
    return f"{found['step']} steps, learners on {len(placed['learners'])} nodes, digest {found['digest'][:16]}"


def resume(climb):
    overrides = ["tasks.train.nodes=2", f"params.program=[checks/kill_once.py, {climb.program()}]"]
    slowly = ["tasks.train.vars.STAND_IN_STEP_S=0.3"] if climb.is_stand_in else []
    run = climb.finish(*words("one-node.txt"), *overrides, *slowly)
    attempts = run.facts.task("train").attempts
    if len(attempts) < 2:
        raise NotProvedError(f"{run.id} ended before it was killed")
    before, after = (read(run, f"steps-{number}.json") for number in (1, max(attempts)))
    if not after or min(after) <= max(before):
        raise NotProvedError(f"attempt 1 saved {before}, attempt {max(attempts)} {after}: it began again")
    return f"killed after step {max(before)}, went on with {min(after)}; " + trained(climb, run)


def full(climb):
    run = climb.start()
    while not saved(run) and not run.state.is_terminal:
        time.sleep(LOOK_EVERY_S)
        run.reconcile()
    if run.state.is_terminal:
        ended(run)
    return f"{run.id} is {run.state} and has saved {saved(run)}; it needs nobody from here on"


STEPS = {
    "environment": environment,
    "allreduce": allreduce,
    "one-node": one_node,
    "two-nodes": two_nodes,
    "resume": resume,
    "full": full,
}


def climb_all(climb, names):
    """Carry the steps out; the number of the first that proves nothing, or 0."""
    for number, name in enumerate(STEPS, start=1):
        if name not in names:
            continue
        print(f"{number}/{len(STEPS)} {name}", flush=True)
        began = time.monotonic()
        try:
            proof = STEPS[name](climb)
        except (NotProvedError, WindlassError) as error:
            print(f"{number}/{len(STEPS)} {name}: NOT PROVED: {error}", flush=True)
            return number
        print(f"{number}/{len(STEPS)} {name}: proved in {time.monotonic() - began:.0f} s: {proof}", flush=True)
    return 0


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site")
    parser.add_argument("--stand-in", action="store_true", help="the stand-in instead of open-instruct")
    parser.add_argument("--snapshot", action="store_true", help="run files that are not committed")
    parser.add_argument("--from", dest="first", choices=STEPS, default="environment")
    parser.add_argument("--to", dest="last", choices=STEPS, default="full")
    args, overrides = parser.parse_known_args(arguments)
    names = list(STEPS)
    names = names[names.index(args.first) : names.index(args.last) + 1]
    climb = Climb(Options(on=args.site, snapshot=args.snapshot), args.stand_in, overrides)
    return 1 if climb_all(climb, names) else 0


if __name__ == "__main__":
    sys.exit(main())
