"""windlass.train.data beside Hugging Face `datasets`: `python benches/bench_train_data.py [rounds]`.

Text to tokens: the sources of the standard library as JSONL, with a tokenizer trained on them here, so that nothing is
downloaded. Both sides have the same two processors and two worker processes of one thread; every side and round runs in a fresh process, interleaved,
so that a busy minute hits all alike. `map` is `datasets.map` with `tokenizers`' own fast batch call, its result kept as
Arrow as it comes; `load+map` counts the reading of the JSONL too, as ours does.

Then what a batch of the loader costs, by layout.

`datasets` is that of this interpreter, or of `.venv-dev` (`make setup`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
DEV_PYTHON = HERE.parent / ".venv-dev" / "bin" / "python"
NUM_ROUNDS = 3
NUM_WORKERS = 2
VOCAB_SIZE = 8192
MAX_BYTES = 24 << 20
PIECE = 2000  # characters of a document
FLOOR = 1.0  # documents per CPU-second, ours over theirs

ONE_THREAD = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}  # of each worker: as many as processors in all

Found = dict[str, float]


def main() -> int:
    """Print both sides and the verdict; 1 when ours is slower."""
    if len(sys.argv) > 2:
        print("RESULT " + json.dumps(globals()[f"run_{sys.argv[1]}"](Path(sys.argv[2]))))
        return 0
    num_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_ROUNDS
    has_peer = importlib.util.find_spec("datasets") and importlib.util.find_spec("tokenizers")
    python = sys.executable if has_peer else str(DEV_PYTHON)
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory() as folder:
        measure(python, "prepare", Path(folder))
        sides: dict[str, list[Found]] = {"ours": [], "theirs": []}
        for number in range(num_rounds):
            for side in list(sides) if number % 2 == 0 else list(sides)[::-1]:
                sides[side].append(measure(python, side, Path(folder)))
        loader = measure(python, "loader", Path(folder))
    return report(sides, loader)


def measure(python: str, name: str, folder: Path) -> Found:
    """One fresh process on at most two processors."""
    processors = sorted(os.sched_getaffinity(0))[:NUM_WORKERS]
    done = subprocess.run(
        [python, __file__, name, str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", **ONE_THREAD},
        preexec_fn=lambda: os.sched_setaffinity(0, processors),
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(f"{name} failed:\n{done.stdout}{done.stderr}")
    found: Found = json.loads(lines[0].removeprefix("RESULT "))
    return found


def report(sides: dict[str, list[Found]], loader: Found) -> int:
    """The table and the verdict."""
    documents = sides["ours"][0]["documents"]
    assert {found["tokens"] for side in sides.values() for found in side} == {sides["ours"][0]["tokens"]}
    print(f"{documents:.0f} documents, {sides['ours'][0]['tokens']:.0f} tokens, {len(sides['ours'])} rounds, medians")
    rates: dict[str, float] = {}
    for name, side, prefix in (("windlass", "ours", ""), ("map", "theirs", ""), ("load+map", "theirs", "all_")):
        cpu_s, wall_s = (median(found[prefix + key] for found in sides[side]) for key in ("cpu_s", "wall_s"))
        rates[name] = documents / cpu_s
        print(
            f"{name:<10}{documents / cpu_s:10.0f} documents/CPU-s{documents / wall_s:10.0f} documents/s of wall clock"
        )
    ratio = rates["windlass"] / rates["map"]
    print(
        f"windlass / map: {ratio:.2f} per CPU-second (at least {FLOOR:g}), {rates['windlass'] / rates['load+map']:.2f} with reading"
    )
    for name, value in loader.items():
        print(f"loader {name:<28}{value:10.1f}")
    return int(ratio < FLOOR)


def run_prepare(folder: Path) -> Found:
    """Documents and a tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    texts: list[str] = []
    size = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" in path.parts or size > MAX_BYTES:
            continue
        text = path.read_text(errors="replace")
        size += len(text)
        texts += [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts[:1500], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return {"documents": len(texts)}


def run_ours(folder: Path) -> Found:
    """windlass, from JSONL to committed token files."""
    from windlass.train import SourceConfig, TokenizerConfig
    from windlass.train.data import ingest
    from windlass.train.data.manifest import read_manifest

    with tempfile.TemporaryDirectory(dir=folder) as cache:
        clock = Clock()
        source = SourceConfig(path=(str(folder / "text.jsonl"),))
        made = ingest(
            source, TokenizerConfig(path=str(folder / "tokenizer.json")), cache=Path(cache), num_workers=NUM_WORKERS
        )
        found = clock.read()
        manifest = read_manifest(made)
    return {**found, "documents": manifest.num_documents, "tokens": manifest.num_tokens}


def run_theirs(folder: Path) -> Found:
    """`datasets.load_dataset("json")` and `map`."""
    import datasets
    from tokenizers import Tokenizer

    datasets.disable_progress_bars()
    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        encodings = tokenizer.encode_batch_fast(batch["text"], add_special_tokens=False)
        return {"ids": [[*encoding.ids, 0] for encoding in encodings]}

    with tempfile.TemporaryDirectory(dir=folder) as cache:
        whole = Clock()
        data = datasets.load_dataset("json", data_files=str(folder / "text.jsonl"), split="train", cache_dir=cache)
        clock = Clock()
        made = data.map(encode, batched=True, num_proc=NUM_WORKERS, remove_columns=["text"])
        found = {**clock.read(), **{f"all_{key}": value for key, value in whole.read().items()}}
        tokens = sum(len(ids) for ids in made["ids"])
    return {**found, "documents": len(made), "tokens": tokens}


def run_loader(folder: Path) -> Found:
    """Microseconds of CPU for a batch of 32 rows of 1,024 tokens, made in the thread that uses it."""
    from windlass.train import DataConfig, Share, SourceConfig, TokenizerConfig
    from windlass.train.data.build import build_loader

    found: Found = {}
    for layout, has_masks in (("chunk", False), ("chunk", True), ("pack", True), ("pad", True)):
        config = DataConfig(
            sources=(SourceConfig(path=(str(folder / "text.jsonl"),)),),
            tokenizer=TokenizerConfig(path=str(folder / "tokenizer.json")),
            sequence_length=1024,
            batch_tokens=32 * 1024,
            layout=layout,  # type: ignore[arg-type]
            mask_documents=has_masks,
            prefetch=0,
            cache=folder / "cache",
        )
        loader = build_loader(config, seed=0, share=Share(), vocab_size=VOCAB_SIZE)
        batches = iter(loader)
        next(batches)
        start = time.process_time()
        for _ in range(100):
            next(batches)
        found[f"{layout}{', masks' if has_masks else ''}, us/batch"] = (time.process_time() - start) * 1e4
    return found


class Clock:
    """CPU seconds of this process and of children that ended, and wall-clock seconds, since it was made."""

    def __init__(self) -> None:
        self._cpu_s, self._wall_s = _cpu_s(), time.perf_counter()

    def read(self) -> Found:
        return {"cpu_s": _cpu_s() - self._cpu_s, "wall_s": time.perf_counter() - self._wall_s}


def _cpu_s() -> float:
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, who))


if __name__ == "__main__":
    raise SystemExit(main())
