"""A stand-in for open_instruct/grpo_fast.py: same flags, actors and checkpoints, sums instead of a language model.

Real Ray actors in real placement groups on as many (fake) GPUs; learners and engines exchange weights and answers as
the real ones do, in plain Python. What it learns at the end does not depend on shape or interruptions, bit for bit.
"""

import json
import os
import shutil
import sys
import time

import flags
import policy
import ray
from actors import Fleet

from windlass import report

STEP_S = float(os.environ.get("STAND_IN_STEP_S", "0"))
"""Seconds that a step takes at least, so that there is time to kill something."""


def load_state(args, prompts):
    """(step, table) of the newest whole checkpoint, or the beginning."""
    latest = report.latest_checkpoint()
    if latest is None:
        return 0, policy.fresh(prompts)
    state = json.loads((latest / "state.json").read_text())
    return state["step"], state["table"]


def save_state(args, step, table):
    """One folder per checkpoint and the name of the newest, as DeepSpeed; windlass takes none that is not whole."""
    folder = args.checkpoint_state_dir / f"global_step{step}"
    fresh = folder.with_name(f".{folder.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    (fresh / "state.json").write_text(json.dumps({"step": step, "table": table}))
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    (folder.parent / "latest").write_text(folder.name)
    report.checkpoint(folder, step=step)
    if args.keep_last_n_checkpoints > 0:
        steps = sorted(int(path.name[len("global_step") :]) for path in folder.parent.glob("global_step*"))
        for old in steps[: -args.keep_last_n_checkpoints]:
            shutil.rmtree(folder.with_name(f"global_step{old}"))


def accuracy(args, prompts, table):
    """Chance of the right answer, over all prompts."""
    answers = policy.answers_of(prompts)
    right = [
        policy.chances(row, args.temperature)[answers.index(truth)]
        for (_, truth), row in zip(prompts, table, strict=True)
    ]
    return sum(right) / len(right)


def train(args, prompts, start, table, num_steps):
    """From `start` to the end; returns the table."""
    fleet = Fleet(args, prompts, table)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    placement = {"learners": fleet.learner_nodes, "engines": fleet.engine_nodes}
    (args.output_dir / "placement.json").write_text(json.dumps(placement))
    print(f"{len(fleet.learners)} learners on {', '.join(fleet.learner_nodes)}", flush=True)
    print(f"{len(fleet.engines)} engines on {', '.join(sorted(set(fleet.engine_nodes)))}", flush=True)
    for step in range(start + 1, num_steps + 1):
        began = time.monotonic()
        groups = fleet.generate(step, policy.chosen(args, step, len(prompts)))
        fleet.learn(step, groups)
        fleet.sync()
        rewards = [reward for group in groups.values() for _, reward in group]
        report.metrics({"objective/verifiable_correct_rate": sum(rewards) / len(rewards)}, step=step)
        wants_stop = report.should_stop()
        if step % args.checkpoint_state_freq == 0 or wants_stop or report.should_checkpoint() or step == num_steps:
            save_state(args, step, fleet.weights())
            print(f"step {step}: reward {sum(rewards) / len(rewards):.3f}, saved", flush=True)
        if wants_stop and step < num_steps:
            sys.exit(75)  # saved; to be continued
        time.sleep(max(0.0, STEP_S - (time.monotonic() - began)))
    return fleet.weights()


def main():
    args = flags.parse()
    prompts = policy.load_prompts(args.dataset_mixer_list[0])
    num_steps = args.total_episodes // (args.num_unique_prompts_rollout * args.num_samples_per_prompt_rollout)
    start, table = load_state(args, prompts)
    print(f"attempt {report.place().attempt}: {start} of {num_steps} steps are done", flush=True)
    if start < num_steps:
        ray.init(log_to_driver=False)
        table = train(args, prompts, start, table, num_steps)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    result = {"step": num_steps, "accuracy": accuracy(args, prompts, table), "digest": policy.digest(num_steps, table)}
    (args.output_dir / "result.json").write_text(json.dumps(result) + "\n")
    print(f"done: accuracy {result['accuracy']:.3f}, digest {result['digest'][:16]}", flush=True)


if __name__ == "__main__":
    main()
