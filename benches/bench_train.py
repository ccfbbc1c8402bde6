"""windlass.train beside a bare loop, HF Trainer and OLMo-core: `python benches/bench_train.py [options]`.

Every peer and round is a fresh process, rounds interleaved and turned around, so that a busy minute hits all alike; each
process has one thread. On a CPU tokens per CPU-second of rank 0 is what compares; on a GPU (`--device cuda --bf16
--compile`) tokens per second and the share of the peak. A peer that is not installed is left out, and said so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PEERS = ("plain", "hf", "olmo-core", "windlass")
SIZES = {  # width, layers, heads, hidden
    "1m": (128, 2, 2, 512),
    "5m": (256, 4, 4, 768),
    "30m": (512, 8, 8, 1536),
    "350m": (1024, 24, 16, 2816),
    "1b": (2048, 16, 16, 8192),
}
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bfloat16, vendors' data sheets
TIMEOUT_S = 900

Found = dict[str, Any]


def main() -> int:
    """Print the medians and the verdicts; 1 when a budget is missed or a peer failed."""
    options = read_options()
    peers = [peer for peer in options.peers.split(",") if is_there(peer)]
    found: dict[str, list[Found]] = {peer: [] for peer in peers}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "tokens.npy")
        make_tokens(data, options)
        for number in range(options.rounds):
            for peer in peers if number % 2 == 0 else peers[::-1]:
                result = measure(peer, options, data, Path(folder))
                found[peer] += [result] if result else []
        imports = {peer: measure_import(peer, Path(folder)) for peer in peers}
    load = os.getloadavg()[0]
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f}")
    print(f"size {options.size}, rows of {options.length}, {options.batch} rows a step, {options.procs} process(es)")
    for peer, results in found.items():
        if results:
            print_line(peer, results, imports[peer], options)
    if not all(found.values()):
        return 1
    kept = [report(*verdict) for verdict in verdicts(found, imports, options)]  # all of them, before a miss counts
    return int(not all(kept))


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--size", default="5m", choices=SIZES)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--procs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


def is_there(peer: str) -> bool:
    """Whether its package can be found; says so where not."""
    needs = {"hf": "transformers", "olmo-core": "olmo_core"}.get(peer, "torch")
    look = subprocess.run(
        [sys.executable, "-c", f"import importlib.util as u; raise SystemExit(u.find_spec({needs!r}) is None)"]
    )
    if look.returncode:
        print(f"{peer}: left out, {needs} is not installed")
    return look.returncode == 0


def make_tokens(path: Path, options: argparse.Namespace) -> None:
    """A stream that can be learned: a noisy chain in which each token has four likely followers."""
    draw = np.random.default_rng(0)
    num = options.batch * options.length * (options.steps + 4)
    followers = draw.integers(1, options.vocab, size=(options.vocab, 4))
    noise, pick = draw.random(num) < 0.2, draw.integers(0, 4, size=num)
    stray = np.minimum(draw.zipf(1.3, size=num), options.vocab - 1)
    tokens, last = np.empty(num, dtype=np.uint16), 1
    for place in range(num):
        last = int(stray[place]) if noise[place] else int(followers[last, pick[place]])
        tokens[place] = last
    tokens.tofile(path)


def measure(peer: str, options: argparse.Namespace, data: Path, folder: Path) -> Found | None:
    """One job; None when it fails, with what it said."""
    width, layers, heads, hidden = SIZES[options.size]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        settings = {
            "width": width,
            "layers": layers,
            "heads": heads,
            "hidden": hidden,
            "vocab": options.vocab,
            "length": options.length,
            "batch": options.batch,
            "steps": options.steps,
            "seed": 0,
            "data": str(data),
            "folder": scratch,
            "device": options.device,
            "bf16": options.bf16,
            "compile": options.compile,
            "started_at": time.time(),
        }
        return run(peer, settings, Path(scratch), options.procs)


def measure_import(peer: str, folder: Path) -> Found:
    """What it costs to import a peer, in a process of its own."""
    blank = dict.fromkeys(("width", "layers", "heads", "hidden", "vocab", "length", "batch", "steps", "seed"), 0)
    rest = {"data": "", "folder": "", "device": "cpu", "bf16": False, "compile": False, "started_at": 0.0}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        return run(peer, blank | rest, Path(scratch), 1) or {}


def run(peer: str, settings: Found, scratch: Path, procs: int) -> Found | None:
    """Start the ranks of one peer and read what rank 0 wrote."""
    path, out = scratch / "settings.json", scratch / "out.json"
    path.write_text(json.dumps(settings))
    command = [str(HERE / "train_peers.py"), peer, str(path), str(out)]
    if procs > 1:
        spread = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(procs)]
        command = [sys.executable, *spread, *command]
    else:
        command = [sys.executable, *command]
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "OLMO_SHARED_FS": "1"}
    done = subprocess.run(
        command, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode or not out.exists():
        print(f"{peer} failed ({done.returncode}):\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
        return None
    return dict(json.loads(out.read_text()))


def middle(results: list[Found], name: str) -> float:
    """The median of a figure over rounds."""
    return median(float(result[name]) for result in results)


def print_line(peer: str, results: list[Found], imported: Found, options: argparse.Namespace) -> None:
    """One peer's figures."""
    line = (
        f"{peer:<10}{middle(results, 'tokens_per_cpu_s'):9.0f} tok/CPU-s{middle(results, 'tokens_per_s'):10.0f} tok/s"
    )
    line += f"   first step {middle(results, 'first_step_cpu_s'):5.2f} CPU-s {middle(results, 'first_step_s'):6.2f} s"
    line += f"   import {imported.get('import_cpu_s', 0):5.2f} CPU-s {imported.get('rss_mb', 0):5.0f} MB"
    line += f"   peak {middle(results, 'rss_mb'):6.0f} MB   {len(results)} rounds"
    if options.device == "cuda":
        line += f"   GPU {middle(results, 'peak_gpu_gb'):5.1f} GB   MFU {mfu(results, options):.1%}"
    print(line)


def mfu(results: list[Found], options: argparse.Namespace) -> float:
    """Share of the device's bfloat16 peak; 6 operations per parameter and token, and attention's."""
    width, layers, _, hidden = SIZES[options.size]
    weights = layers * (4 * width * width + 3 * width * hidden) + width * options.vocab
    flops = 6 * weights + 6 * layers * width * options.length
    peak = next((peak for name, peak in PEAK_FLOPS.items() if name in str(results[0]["gpu"])), float("nan"))
    rate: float = flops * middle(results, "tokens_per_s") / peak / options.procs
    return rate


def verdicts(
    found: dict[str, list[Found]], imports: dict[str, Found], options: argparse.Namespace
) -> list[tuple[str, bool]]:
    """The promises that can be judged with the peers that are there."""
    ours, name = found["windlass"], "tokens_per_cpu_s" if options.device == "cpu" else "tokens_per_s"
    best = max(middle(results, name) for peer, results in found.items() if peer != "windlass")
    ratio = middle(ours, name) / best
    made = [(f"{name} is {ratio:.3f} of the best peer's (at least 0.97)", ratio >= 0.97)]
    if "plain" in found:
        first = middle(ours, "first_step_cpu_s") / middle(found["plain"], "first_step_cpu_s")
        made.append((f"CPU to the end of the first step is {first:.2f} of the bare loop's (at most 1.1)", first <= 1.1))
    if {"olmo-core", "plain"} <= set(found):
        time_s, memory = (beyond_torch(imports, name) for name in ("import_cpu_s", "rss_mb"))
        name = f"beyond torch's own, import takes {time_s:.2f} of OLMo-core's CPU, {memory:.2f} of its memory"
        made.append((f"{name} (at most 0.5)", max(time_s, memory) <= 0.5))
    return made


def beyond_torch(imports: dict[str, Found], name: str) -> float:
    """What our import adds to torch's, as a share of what OLMo-core's adds."""
    ours, theirs, torch = (float(imports[peer][name]) for peer in ("windlass", "olmo-core", "plain"))
    return (ours - torch) / (theirs - torch)


def report(name: str, is_kept: bool) -> bool:
    """Print a verdict."""
    print(f"{'kept  ' if is_kept else 'MISSED'}  {name}")
    return is_kept


if __name__ == "__main__":
    sys.exit(main())
