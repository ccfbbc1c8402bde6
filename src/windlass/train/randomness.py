"""Random numbers of a run, seeded by where they are used and independent of earlier samples.

A model's random numbers (dropout, noise) depend on the seed, the step and the microbatch's first row, so they are
equal on any number of processes. Generators that callbacks or loaders use are restored if the number of processes
is unchanged.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import random
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from windlass.train.parallel.world import World

__all__ = ["generator_states", "restore_generators", "seed_for", "seed_generators"]


def seed_for(*parts: int | str) -> int:
    """Return a 63-bit seed made from parts such as seed, step and row; different parts give unrelated seeds."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators of the host and the device. Takes microseconds."""
    torch.random.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def generator_states(world: World) -> dict[str, Any]:
    """Return the states of the Python, NumPy and torch generators of all processes, JSON-safe. Collective."""
    mine: dict[str, Any] = {
        "python": _pack(repr(random.getstate()).encode()),
        "torch": _pack(bytes(torch.get_rng_state().numpy())),
    }
    name, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    mine["numpy"] = [name, _pack(np.asarray(keys).tobytes()), int(place), int(has_gauss), float(gauss)]
    states: list[Any] = [mine]
    if world.size > 1:
        import torch.distributed as dist

        states = [None] * world.size
        dist.all_gather_object(states, mine)
    return {"world": world.size, "states": states if any(state != mine for state in states) else [mine]}


def restore_generators(saved: Mapping[str, Any] | None, world: World) -> bool:
    """Restore the states of generators.

    Returns False if there are none, or if they are for a different number of processes.
    """
    if not saved or saved["world"] != world.size:
        return False
    states = saved["states"]
    mine = states[world.rank if len(states) > 1 else 0]
    random.setstate(_python_state(_unpack(mine["python"]).decode()))
    torch.set_rng_state(torch.frombuffer(bytearray(_unpack(mine["torch"])), dtype=torch.uint8))
    name, keys, place, has_gauss, gauss = mine["numpy"]
    np.random.set_state((name, np.frombuffer(_unpack(keys), dtype=np.uint32), place, has_gauss, gauss))
    return True


def _python_state(text: str) -> tuple[Any, ...]:
    version, internal, gauss = ast.literal_eval(text)
    return version, tuple(internal), gauss


def _pack(content: bytes) -> str:
    return base64.b85encode(zlib.compress(content)).decode("ascii")


def _unpack(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))
