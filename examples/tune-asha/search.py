"""ASHA over a neural network for handwritten digits: most trials are stopped early, the best go on to the end."""

from __future__ import annotations

import collections
import sys
import warnings

from windlass import tune

MAX_PASSES = 9


class Digits(tune.Trainable):
    """One step is one pass over the training data."""

    def setup(self, config, data):
        from sklearn.neural_network import MLPClassifier

        warnings.simplefilter("ignore")
        self.data = data
        self.model = MLPClassifier(
            hidden_layer_sizes=(config["units"],),
            learning_rate_init=config["lr"],
            alpha=config["l2"],
            batch_size=config["batch"],
            random_state=0,
        )

    def step(self):
        train_x, test_x, train_y, test_y = self.data
        self.model.partial_fit(train_x, train_y, classes=range(10))
        return {"accuracy": self.model.score(test_x, test_y)}


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
            "lr": tune.loguniform(1e-5, 1e-1),
            "l2": tune.loguniform(1e-6, 1e-1),
            "units": tune.choice([8, 16, 32]),
            "batch": tune.choice([64, 128]),
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=27,
            scheduler=tune.ASHA(max_t=MAX_PASSES, grace_period=1, reduction_factor=3),
            preload=["sklearn.neural_network"],
        ),
        run_config=tune.RunConfig(
            name="digits", storage_path=storage_path, checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False)
        ),
    ).fit()


if __name__ == "__main__":
    results = search(*sys.argv[1:])
    passes = collections.Counter(result.metrics["training_iteration"] for result in results)
    for number, count in sorted(passes.items()):
        print(f"{count:3} trials went {number} passes")
    best = results.get_best_result()
    print(f"{sum(n * count for n, count in passes.items())} passes instead of {len(results) * MAX_PASSES}")
    print(f"best: {best.metrics['accuracy']:.3f} with {best.config}")
