"""Fit a line on two replicas: each has half of the points, the first one adds the gradients up. Standard library only."""

import json
import random
import socket
import sys
import time

from windlass import report

LEARNING_RATE, MOMENTUM, STEPS = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])


def main():
    place = report.place()
    peers = meet(place)
    points = draw_points(place.rank, place.num_replicas)
    weights, speed, begin = restore() if place.rank == 0 else ([0.0] * 3, [0.0] * 3, 0)
    weights, speed, begin = broadcast(peers, place.rank, [weights, speed, begin])
    for step in range(begin + 1, STEPS + 1):
        time.sleep(0.05)  # a real step takes longer
        gradient, loss, num_points = add_up(peers, place.rank, gradient_of(weights, points))
        speed = [MOMENTUM * s - LEARNING_RATE * g / num_points for s, g in zip(speed, gradient, strict=True)]
        weights = [w + s for w, s in zip(weights, speed, strict=True)]
        is_last = False
        if place.rank == 0:
            report.metrics({"loss": loss / num_points}, step=step)
            is_last = report.should_stop()
            if step % 9 == 0 or is_last:
                with report.checkpoint_dir(step=step) as folder:
                    (folder / "state.json").write_text(json.dumps([weights, speed]))
        if broadcast(peers, place.rank, is_last):
            sys.exit(75)


def draw_points(rank, num_replicas):
    """This replica's share of 200 points near y = 3 a - 2 b + 1."""
    draws = random.Random(1)
    points = []
    for _ in range(200):
        a, b = draws.gauss(0, 1), draws.gauss(0, 1)
        points.append((a, b, 3 * a - 2 * b + 1 + draws.gauss(0, 0.1)))
    return points[rank::num_replicas]


def gradient_of(weights, points):
    """Sums over points: the gradient, the loss, and how many points there are."""
    gradient, loss = [0.0, 0.0, 0.0], 0.0
    for a, b, y in points:
        error = weights[0] * a + weights[1] * b + weights[2] - y
        loss += error * error
        gradient = [g + error * x for g, x in zip(gradient, (a, b, 1.0), strict=True)]
    return gradient, loss, len(points)


def restore():
    """Weights, speed and step of the newest checkpoint."""
    saved = report.latest_checkpoint()
    if saved is None:
        return [0.0] * 3, [0.0] * 3, 0
    weights, speed = json.loads((saved / "state.json").read_text())
    return weights, speed, int(saved.name.partition("-")[2])


def meet(place):
    """Lines to the others: of the first replica to all, of the others to the first."""
    if place.rank > 0:
        return [connect(place.address, place.port)]
    with socket.create_server((place.address, place.port)) as server:
        server.settimeout(60)
        return [server.accept()[0].makefile("rw") for _ in range(place.num_replicas - 1)]


def connect(address, port):
    for _ in range(600):
        try:
            return socket.create_connection((address, port), timeout=60).makefile("rw")
        except ConnectionRefusedError:  # the first replica is not there yet
            time.sleep(0.1)
    raise TimeoutError("the first replica did not come")


def add_up(peers, rank, mine):
    """The sum of all replicas' gradients, losses and counts, on all of them."""
    if rank > 0:
        tell(peers[0], mine)
        return hear(peers[0])
    gradient, loss, num_points = mine
    for peer in peers:
        other, its_loss, its_points = hear(peer)
        gradient = [g + o for g, o in zip(gradient, other, strict=True)]
        loss, num_points = loss + its_loss, num_points + its_points
    return broadcast(peers, rank, [gradient, loss, num_points])


def broadcast(peers, rank, value):
    """The first replica's value, on all of them."""
    if rank > 0:
        return hear(peers[0])
    for peer in peers:
        tell(peer, value)
    return value


def tell(peer, value):
    peer.write(json.dumps(value) + "\n")
    peer.flush()


def hear(peer):
    line = peer.readline()
    if not line:
        sys.exit("the other replica is gone")
    return json.loads(line)


if __name__ == "__main__":
    main()
