"""Population based training of a small network with checkpoints; the schedule that it finds is printed and drawn."""

from __future__ import annotations

import sys
from pathlib import Path

from network import Network

from windlass import tune
from windlass.tune.pictures import draw
from windlass.tune.results import lineage

PASSES = 16
INTERVAL = 4


class Digits(tune.Trainable):
    """One step is one pass over the training data."""

    def setup(self, config, data):
        self.data = data
        self.network = Network(64, 32, 10, seed=config["seed"])

    def step(self):
        train_x, test_x, train_y, test_y = self.data
        self.network.fit_pass(train_x, train_y, lr=self.config["lr"], momentum=self.config["momentum"])
        return {"accuracy": self.network.accuracy(test_x, test_y)}

    def save_checkpoint(self, checkpoint_dir):
        self.network.save(Path(checkpoint_dir) / "network.npz")

    def load_checkpoint(self, checkpoint_dir):
        self.network.load(Path(checkpoint_dir) / "network.npz")


def load_data():
    """Training and test images and labels."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    return train_test_split(pixels / 16, labels, test_size=0.4, random_state=0, stratify=labels)


def search(storage_path=None):
    """Run the sweep; returns its results."""
    return tune.Tuner(
        tune.with_parameters(Digits, data=load_data()),  # every worker maps the same file
        param_space={
            "lr": tune.loguniform(1e-4, 1e-1),
            "momentum": tune.uniform(0, 0.95),
            "seed": 0,
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=6,
            scheduler=tune.PBT(
                time_attr="training_iteration",
                perturbation_interval=INTERVAL,
                hyperparam_mutations={"lr": tune.loguniform(1e-4, 1e-1), "momentum": tune.uniform(0, 0.95)},
            ),
            preload=["numpy"],
        ),
        run_config=tune.RunConfig(
            name="digits-pbt",
            storage_path=storage_path,
            stop={"training_iteration": PASSES},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=INTERVAL, num_to_keep=2),
        ),
    ).fit()


if __name__ == "__main__":
    results = search(*sys.argv[1:2])
    best = results.get_best_result()
    history = results.analysis.history
    for exploit in lineage(history, results.analysis.get_best_trial().trial_id):
        print(f"pass {exploit.iteration:2}: {exploit.why}")
    picture = draw(history, "schedule", Path(results.experiment_path, "schedule.svg"))
    print(f"best: {best.metrics['accuracy']:.3f} with lr {best.config['lr']:.4f}; schedule in {picture}")
