"""Grid of learning rates on spot nodes: a node may be taken away, and its trial goes on from a checkpoint elsewhere."""

import argparse
import os
import socket
import time

import numpy as np

from windlass import tune

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
NUM_EPOCHS = 20


class Classifier(tune.Trainable):
    """Logistic regression with momentum on points of two overlapping classes; its state is two small arrays."""

    def setup(self, config):
        random = np.random.default_rng(7)
        self.labels = random.integers(0, 2, 600)
        self.points = random.normal(0, 1, (600, 8)) + 0.4 * self.labels[:, None]
        self.weights, self.velocity = np.zeros(8), np.zeros(8)

    def step(self):
        time.sleep(self.config["epoch_s"])  # stands for training that takes longer
        for rows in np.random.default_rng(self.iteration).permutation(600).reshape(20, 30):
            chance = 1 / (1 + np.exp(-self.points[rows] @ self.weights))
            gradient = self.points[rows].T @ (chance - self.labels[rows]) / len(rows)
            self.velocity = 0.9 * self.velocity - self.config["lr"] * gradient
            self.weights = self.weights + self.velocity
        scores = self.points @ self.weights
        loss = float(np.mean(np.logaddexp(0, scores) - self.labels * scores))
        return {"loss": loss, "host": socket.gethostname(), "done": self.iteration + 1 >= NUM_EPOCHS}

    def save_checkpoint(self, folder):
        np.savez(os.path.join(folder, "state.npz"), weights=self.weights, velocity=self.velocity)

    def load_checkpoint(self, folder):
        with np.load(os.path.join(folder, "state.npz")) as state:
            self.weights, self.velocity = state["weights"], state["velocity"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epoch-s", type=float, default=0.5, help="Seconds that an epoch takes.")
    parser.add_argument("--storage", default=os.path.expanduser("~/sweeps"), help="Folder or bucket (s3://...).")
    given = parser.parse_args()
    tuner = tune.Tuner(
        Classifier,
        param_space={"lr": tune.grid_search(list(RATES)), "epoch_s": given.epoch_s},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(
            name="rates",
            storage_path=given.storage,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=4),
        ),
    )
    results = tuner.fit()
    for result in results:
        print(f"lr {result.config['lr']:<5g} loss {result.metrics['loss']:.6f} on {result.metrics['host']}")
    best = results.get_best_result()
    print(f"best lr {best.config['lr']:g} loss {best.metrics['loss']:.6f}")


if __name__ == "__main__":
    main()
