"""BOHB over gradient boosting: trials are paused at a budget, and the better third goes on with three times as much."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from windlass import tune
from windlass.tune.schedulers import HyperBandForBOHB
from windlass.tune.search.bohb import TuneBOHB

MAX_STEPS = 9
TREES_PER_STEP = 4


class Boosting(tune.Trainable):
    """One step is four more trees."""

    def setup(self, config):
        from sklearn.datasets import load_diabetes
        from sklearn.ensemble import GradientBoostingRegressor
        from sklearn.model_selection import train_test_split

        inputs, target = load_diabetes(return_X_y=True)
        self.data = train_test_split(inputs, target, test_size=0.4, random_state=0)
        self.model = GradientBoostingRegressor(
            learning_rate=config["lr"],
            max_depth=config["depth"],
            subsample=config["subsample"],
            warm_start=True,
            random_state=0,
        )
        self.trees = 0

    def step(self):
        train_x, test_x, train_y, test_y = self.data
        self.trees += TREES_PER_STEP
        self.model.set_params(n_estimators=self.trees).fit(train_x, train_y)
        return {"error": float(((self.model.predict(test_x) - test_y) ** 2).mean() ** 0.5), "trees": self.trees}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "model").write_bytes(pickle.dumps((self.trees, self.model)))

    def load_checkpoint(self, checkpoint_dir):
        self.trees, self.model = pickle.loads(Path(checkpoint_dir, "model").read_bytes())


def search(storage_path=None):
    """Run the sweep; returns its results."""
    return tune.Tuner(
        Boosting,
        param_space={
            "lr": tune.loguniform(0.01, 1.0),
            "depth": tune.randint(1, 6),
            "subsample": tune.uniform(0.3, 1.0),
        },
        tune_config=tune.TuneConfig(
            metric="error",
            mode="min",
            num_samples=26,
            search_alg=TuneBOHB(),
            scheduler=HyperBandForBOHB(time_attr="training_iteration", max_t=MAX_STEPS, reduction_factor=3),
            max_concurrent_trials=4,
            preload=["sklearn.ensemble", "sklearn.datasets", "sklearn.model_selection"],
        ),
        run_config=tune.RunConfig(name="boosting", storage_path=storage_path),
    ).fit()


if __name__ == "__main__":
    results = search(*sys.argv[1:2])
    best = results.get_best_result()
    steps = sum(result.metrics["training_iteration"] for result in results)
    print(f"{steps} steps instead of {len(results) * MAX_STEPS}")
    print(f"best: error {best.metrics['error']:.1f} after {best.metrics['trees']} trees with {best.config}")
