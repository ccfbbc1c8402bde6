"""A script for Ray Tune's API: a function with checkpoints, ASHA, a grid, failures that are tried again."""

import json
import os
import random
import sys
import tempfile

from windlass import tune
from windlass.tune import Checkpoint
from windlass.tune.schedulers import ASHAScheduler


def train(config):
    """Gradient descent on a bowl, which fails now and then and goes on from its checkpoint."""
    state = {"x": 10.0, "step": 0, "failures": 0}
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder, open(os.path.join(folder, "state.json")) as file:
            state = json.load(file)
        state["failures"] += 1
    while state["step"] < 20:
        slope = 2 * state["x"] if config["shape"] == "bowl" else state["x"] ** 3 / 250
        state["x"] -= config["lr"] * slope
        state["step"] += 1
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "state.json"), "w") as file:
                json.dump(state, file)
            metrics = {"loss": abs(state["x"]), "step": state["step"], "failures": state["failures"]}
            tune.report(metrics, checkpoint=Checkpoint.from_directory(folder))
        if state["step"] == 5 and not state["failures"] and random.Random(config["seed"]).random() < 0.3:
            raise RuntimeError("a bad day")


if __name__ == "__main__":
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={
            "lr": tune.loguniform(1e-3, 0.5),
            "shape": tune.grid_search(["bowl", "valley"]),
            "seed": tune.randint(0, 1000),
        },
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=10,
            scheduler=ASHAScheduler(max_t=20, grace_period=4, reduction_factor=2),
        ),
        run_config=tune.RunConfig(
            name="ported",
            storage_path=sys.argv[1] if len(sys.argv) > 1 else None,
            failure_config=tune.FailureConfig(max_failures=1),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
        ),
    )
    results = tuner.fit()
    frame = results.get_dataframe()
    print(frame[["config/lr", "config/shape", "step", "loss"]].sort_values("loss").head())
    print(f"{results.num_terminated} trials ended, {results.num_errors} failed for good")
    print("best:", results.get_best_result().config)
