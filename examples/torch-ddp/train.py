"""Train a character transformer on the source text of the Python standard library, with DistributedDataParallel.

Batches follow from the seed, the step and the rank; model and optimizer lie in the checkpoint. So a run that was
killed ends with the same bits as one that was not.
"""

import argparse
import hashlib
import json
import os
import random
import sys
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from model import CharacterModel
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from windlass import report

CONTEXT, BATCH = 64, 16  # characters per row, rows per rank
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
TEXT_LIMIT = 1_000_000


def load_text():
    """About a megabyte of the standard library's modules, in order of name, as character numbers."""
    numbers = {character: number for number, character in enumerate(CHARACTERS)}
    text, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text.append(path.read_text(encoding="utf-8", errors="replace"))
        size += len(text[-1])
        if size >= TEXT_LIMIT:
            break
    return torch.tensor([numbers.get(character, numbers["?"]) for character in "".join(text)[:TEXT_LIMIT]])


def batch_of(text, seed, step, rank):
    generator = random.Random(f"{seed}/{step}/{rank}")
    starts = [generator.randrange(len(text) - CONTEXT - 1) for _ in range(BATCH)]
    rows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def agreed_checkpoint():
    """The newest checkpoint as the first rank sees it: one answer for all."""
    found = [str(report.latest_checkpoint() or "")] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(found)
    return Path(found[0]) if found[0] else None


def digest_of(model):
    tensors = model.state_dict()
    return hashlib.sha256(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))).hexdigest()


def train(args):
    rank = dist.get_rank()
    text = load_text()
    torch.manual_seed(args.seed)
    model = CharacterModel(len(CHARACTERS), CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    start = 0
    checkpoint = agreed_checkpoint()
    if checkpoint is not None:
        state = torch.load(checkpoint / "state.pt", weights_only=True)
        start = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    print(f"rank {rank} of {dist.get_world_size()}: starts at step {start}", flush=True)
    parallel = DistributedDataParallel(model)

    for step in range(start + 1, args.steps + 1):
        inputs_BT, targets_BT = batch_of(text, args.seed, step, rank)
        loss = functional.cross_entropy(parallel(inputs_BT).flatten(0, 1), targets_BT.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        shared = torch.tensor([loss.item(), float(rank == 0 and report.should_stop())])
        dist.all_reduce(shared)
        mean_loss, must_stop = shared[0].item() / dist.get_world_size(), shared[1].item() > 0
        if rank == 0:
            report.metrics({"loss": mean_loss}, step=step)
            if step % args.save_every == 0 or must_stop or report.should_checkpoint():
                with report.checkpoint_dir(step=step) as folder:
                    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(state, folder / "state.pt")
            if step % 10 == 0:
                print(f"step {step:4}  loss {mean_loss:.4f}", flush=True)
        if must_stop:
            report.finish(75)  # torchrun turns every exit code into 1; this is what counts
            return 75

    if rank == 0:
        out = report.place().out
        out.mkdir(exist_ok=True)
        result = {"loss": mean_loss if start < args.steps else None, "weights_sha256": digest_of(model)}
        (out / "result.json").write_text(json.dumps(result) + "\n")
        torch.save(model.state_dict(), out / "model.pt")
        print(f"weights sha256 {result['weights_sha256'][:16]}", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    code = train(args)
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
