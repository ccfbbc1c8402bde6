"""A network with one hidden layer, in numpy: its whole state is four arrays of weights, four of momentum, and a seed."""

from __future__ import annotations

import numpy as np


class Network:
    """Softmax over one layer of rectified units, trained by stochastic gradient descent with momentum."""

    def __init__(self, inputs: int, units: int, outputs: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.seed, self.passes = seed, 0
        self.weights = [
            random.normal(0, (2 / inputs) ** 0.5, (inputs, units)),
            np.zeros(units),
            random.normal(0, (2 / units) ** 0.5, (units, outputs)),
            np.zeros(outputs),
        ]
        self.momenta = [np.zeros_like(weight) for weight in self.weights]

    def forward(self, x):
        """Hidden units and class probabilities of each row."""
        first, first_bias, second, second_bias = self.weights
        hidden = np.maximum(x @ first + first_bias, 0)
        scores = hidden @ second + second_bias
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, powers / powers.sum(axis=1, keepdims=True)

    def fit_pass(self, x, y, *, lr: float, momentum: float, batch: int = 32) -> None:
        """One pass over the data, in an order that depends on the seed and the number of the pass alone."""
        order = np.random.default_rng((self.seed, self.passes)).permutation(len(x))
        for start in range(0, len(x), batch):
            rows = order[start : start + batch]
            hidden, probabilities = self.forward(x[rows])
            error = probabilities
            error[np.arange(len(rows)), y[rows]] -= 1
            error /= len(rows)
            back = (error @ self.weights[2].T) * (hidden > 0)
            gradients = [x[rows].T @ back, back.sum(0), hidden.T @ error, error.sum(0)]
            for weight, velocity, gradient in zip(self.weights, self.momenta, gradients, strict=True):
                velocity[...] = momentum * velocity - lr * gradient
                weight[...] = weight + velocity
        self.passes += 1

    def accuracy(self, x, y) -> float:
        """Share of rows whose most likely class is right."""
        return float((self.forward(x)[1].argmax(axis=1) == y).mean())

    def save(self, path) -> None:
        """Write the whole state to one file."""
        named = {f"w{i}": w for i, w in enumerate(self.weights)} | {f"m{i}": m for i, m in enumerate(self.momenta)}
        np.savez(path, seed=self.seed, passes=self.passes, **named)

    def load(self, path) -> None:
        """Take over the state of another network of the same shape."""
        with np.load(path) as state:
            self.seed, self.passes = int(state["seed"]), int(state["passes"])
            self.weights = [state[f"w{i}"] for i in range(4)]
            self.momenta = [state[f"m{i}"] for i in range(4)]
