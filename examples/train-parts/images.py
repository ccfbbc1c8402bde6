"""Nothing about language: a small convolutional network reads digits that this file draws."""

import sys

import torch
from torch import nn
from torch.nn import functional

from windlass import train

SEGMENTS = [
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
]
LINES = [(1, 2, 5, 0), (2, 1, 0, 3), (2, 6, 0, 3), (6, 2, 5, 0), (7, 1, 0, 3), (7, 6, 0, 3), (11, 2, 5, 0)]


def draw(digit):
    """A digit of seven segments, 14 rows of 9 points."""
    image_HW = torch.zeros(14, 9)
    for is_on, (row, column, width, height) in zip(SEGMENTS[digit], LINES, strict=True):
        if is_on == "1":
            image_HW[row : row + height + 1, column : column + max(width, 1)] = 1.0
    return image_HW


class Digits:
    """Batches of noisy digits: a loader is an iterator, and two methods that say where it stands."""

    batches_per_epoch = None

    def __init__(self, share, size=32):
        self.share, self.size, self.next = share, size, 0
        self.images_NHW = torch.stack([draw(digit) for digit in range(10)])

    def __iter__(self):
        while True:
            generator = torch.Generator().manual_seed(self.next)
            labels_B = torch.randint(10, (self.size,), generator=generator)
            noise_BHW = torch.randn((self.size, 14, 9), generator=generator)
            self.next += 1
            mine = slice(self.share.rank, None, self.share.world)
            yield (self.images_NHW[labels_B] + noise_BHW)[mine, None], labels_B[mine]

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def loss(model, batch):
    images_B1HW, labels_B = batch
    return functional.cross_entropy(model(images_B1HW), labels_B, reduction="sum"), len(labels_B)


class Accuracy(train.TrainerCallback):
    """Share of digits that are read right, every so many steps."""

    def on_step_end(self):
        if self.trainer.step % 50 == 0:
            images_B1HW, labels_B = self.trainer.batch
            with torch.no_grad():
                right_B = self.trainer.module.model(images_B1HW).argmax(dim=1) == labels_B
            self.trainer.record("eval/accuracy", right_B.float().mean())


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    world = train.World.begin("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.Linear(448, 10)
    )
    module = train.BasicModule(model, torch.optim.AdamW(model.parameters(), lr=3e-3), loss, world=world)
    trainer = train.Trainer(
        module,
        Digits(world.share),
        duration=train.Duration.steps(steps),
        callbacks={"accuracy": Accuracy()},
        world=world,
    )
    trainer.fit()
    world.end()


if __name__ == "__main__":
    main()
