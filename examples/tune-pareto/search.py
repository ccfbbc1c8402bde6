"""NSGA-II looks for forests that are accurate and small; what it finds is a front, not a point."""

from __future__ import annotations

import sys

from windlass import tune


def train(config):
    """Report the mean accuracy and the number of nodes of a forest, over three folds."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import StratifiedKFold

    inputs, target = load_breast_cancer(return_X_y=True)
    scores, nodes = [], 0
    for rows, held_out in StratifiedKFold(3, shuffle=True, random_state=0).split(inputs, target):
        forest = RandomForestClassifier(
            n_estimators=config["trees"],
            max_depth=config["depth"],
            min_samples_leaf=config["leaf"],
            max_features=config["features"],
            random_state=0,
        )
        forest.fit(inputs[rows], target[rows])
        scores.append(forest.score(inputs[held_out], target[held_out]))
        nodes += sum(tree.tree_.node_count for tree in forest.estimators_)
    tune.report({"accuracy": sum(scores) / 3, "nodes": nodes})


def search(storage_path=None):
    """Run the sweep; returns its results."""
    return tune.Tuner(
        train,
        param_space={
            "trees": tune.lograndint(1, 17),
            "depth": tune.randint(1, 9),
            "leaf": tune.randint(1, 10),
            "features": tune.uniform(0.1, 1.0),
        },
        tune_config=tune.TuneConfig(
            metric=["accuracy", "nodes"],
            mode=["max", "min"],
            num_samples=30,
            search_alg=tune.NSGA2(population_size=12),
            preload=["sklearn.ensemble", "sklearn.datasets", "sklearn.model_selection"],
        ),
        run_config=tune.RunConfig(name="forests", storage_path=storage_path),
    ).fit()


if __name__ == "__main__":
    front = search(*sys.argv[1:2]).pareto_front()
    shown = set()
    for result in front:
        if (point := (result.metrics["accuracy"], result.metrics["nodes"])) in shown:
            continue
        shown.add(point)
        print(f"{result.metrics['accuracy']:.3f} with {result.metrics['nodes']:5} nodes: {result.config}")
