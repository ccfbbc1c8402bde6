"""Train a small network on handwritten digits; every replica takes its share of each batch.

Everything random follows from the seed and the step, and everything else lies in the checkpoint. So whatever happens
on the way, the weights at the end are the same, bit for bit.
"""

import argparse
import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
from allreduce import Gang

from windlass import report

LAYERS = [(64, 128), (128, 10)]  # 8 x 8 pixels to ten digits
BATCH, SAVE_EVERY, REPORT_EVERY = 128, 250, 250
HELD_OUT = 360


def load_digits():
    """1,797 images from a file inside scikit-learn's wheel, shuffled; importing scikit-learn itself takes seconds."""
    folder = importlib.util.find_spec("sklearn").submodule_search_locations[0]
    table = np.loadtxt(Path(folder, "datasets", "data", "digits.csv.gz"), delimiter=",")
    table = np.random.default_rng(0).permutation(table)
    return table[:, :64] / 16, table[:, 64].astype(int)


def unpack(weights):
    """Each layer's matrix and bias: views into one flat vector."""
    layers, start = [], 0
    for num_in, num_out in LAYERS:
        stop = start + num_in * num_out
        layers.append((weights[start:stop].reshape(num_in, num_out), weights[stop : stop + num_out]))
        start = stop + num_out
    return layers


def initial_weights(seed):
    random = np.random.default_rng([seed, 0])
    weights = np.zeros(sum(num_in * num_out + num_out for num_in, num_out in LAYERS))
    for matrix, _ in unpack(weights):
        matrix[:] = random.normal(0, np.sqrt(2 / len(matrix)), matrix.shape)
    return weights


def forward(weights, images):
    (first, first_bias), (second, second_bias) = unpack(weights)
    hidden = np.maximum(images @ first + first_bias, 0)
    scores = hidden @ second + second_bias
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, chances / chances.sum(axis=1, keepdims=True)


def gradient(weights, images, labels):
    """Loss and gradient, both summed over this replica's images."""
    hidden, chances = forward(weights, images)
    rows = np.arange(len(labels))
    loss = -np.log(chances[rows, labels]).sum()
    chances[rows, labels] -= 1
    into_hidden = chances @ unpack(weights)[1][0].T * (hidden > 0)
    parts = [images.T @ into_hidden, into_hidden.sum(axis=0), hidden.T @ chances, chances.sum(axis=0)]
    return loss, np.concatenate([part.ravel() for part in parts])


def save(step, weights, velocity):
    with report.checkpoint_dir(step=step) as folder:
        np.save(folder / "state.npy", np.concatenate([[step], weights, velocity]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    args = parser.parse_args()

    place = report.place()
    is_first = place.rank == 0
    gang = Gang(place.rank, place.num_replicas, place.address, place.port)
    images, labels = load_digits()
    test_images, test_labels = images[:HELD_OUT], labels[:HELD_OUT]
    images, labels = images[HELD_OUT:], labels[HELD_OUT:]

    weights = initial_weights(args.seed)
    state = np.concatenate([[0], weights, np.zeros_like(weights)])
    checkpoint = report.latest_checkpoint() if is_first else None
    if checkpoint is not None:
        state = np.load(checkpoint / "state.npy")
    state = gang.broadcast(state)  # one replica reads, so all start from the same
    start, (weights, velocity) = int(state[0]), np.split(state[1:], 2)
    print(f"replica {place.rank} of {place.num_replicas}, attempt {place.attempt}: starts at step {start}", flush=True)

    for step in range(start + 1, args.steps + 1):
        batch = np.random.default_rng([args.seed, step]).choice(len(images), BATCH, replace=False)
        mine = batch[place.rank :: place.num_replicas]
        loss, slope = gradient(weights, images[mine], labels[mine])
        wants_stop = is_first and report.should_stop()
        total = gang.sum(np.concatenate([[loss, wants_stop], slope]))
        velocity = 0.9 * velocity - args.learning_rate * total[2:] / BATCH
        weights = weights + velocity

        must_stop = total[1] > 0  # the first replica's word, so all leave at the same step
        if is_first and (step % SAVE_EVERY == 0 or must_stop or report.should_checkpoint()):
            save(step, weights, velocity)
        if must_stop:
            sys.exit(75)  # saved; to be continued
        if is_first and step % REPORT_EVERY == 0:
            accuracy = float((forward(weights, test_images)[1].argmax(axis=1) == test_labels).mean())
            report.metrics({"loss": total[0] / BATCH, "accuracy": accuracy}, step=step)
            print(f"step {step:4}  loss {total[0] / BATCH:.4f}  held-out accuracy {accuracy:.3f}", flush=True)

    if is_first:
        place.out.mkdir(exist_ok=True)
        accuracy = float((forward(weights, test_images)[1].argmax(axis=1) == test_labels).mean())
        digest = hashlib.sha256(weights.tobytes()).hexdigest()
        np.save(place.out / "weights.npy", weights)
        (place.out / "result.json").write_text(json.dumps({"accuracy": accuracy, "weights_sha256": digest}) + "\n")
        report.metrics({"accuracy": accuracy}, step=args.steps)
        print(f"held-out accuracy {accuracy:.3f}, weights sha256 {digest[:16]}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except ConnectionError as error:
        sys.exit(f"cannot go on: {error}")  # why the other one went is for windlass to find out
