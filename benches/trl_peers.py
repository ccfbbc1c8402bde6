"""Post-training beside TRL, per CPU-second: `python benches/trl_peers.py [repeats [threads [load ...]]]`.

Needs TRL, which windlass does not depend on: run it in an environment of its own that has trl==1.16.0 too. The same
weights, a llama of one million parameters, AdamW at a constant rate, float32, no clipping of what is sampled. Loads:

* grpo-16, grpo-64: 32 prompts x 8 answers of up to 13 tokens a step, prompts of 16 or 64 tokens; samples that entered a
  gradient. Rewards are the answers' lengths, so that no group is constant. windlass with and without shared prompts.
* sft-uneven, sft-even: 32 rows a step; of 16 to 512 tokens, most of them short, or of 256; trainable tokens. TRL pads
  each microbatch of 8 rows: its packing needs flash attention, which no CPU has.

Each way runs in a process of its own, in turn; the median counts. The first two steps are not counted.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 ."
WARM_STEPS, STEPS = 2, 6
GROUPS, MEMBERS, NEW_TOKENS, ROWS = 32, 8, 13, 32
TARGETS = {"grpo-16": 1.2, "grpo-64": 1.5, "sft-uneven": 1.3, "sft-even": 1.0}


def write_inputs(folder: Path) -> None:
    """Write the tokenizer, the model and the rows of all loads."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from windlass.train.hf.convert_weights import export_model
    from windlass.train.hf.mapped import ModuleWeights
    from windlass.train.model.config import AttentionConfig, ModelConfig
    from windlass.train.model.decoder import Decoder
    from windlass.train.model.init import init_weights

    words = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>")
    config = ModelConfig(
        family="llama",
        d_model=128,
        num_layers=4,
        vocab_size=len(words),
        hidden=512,
        attention=AttentionConfig(num_heads=4),
        is_tied=True,
        max_length=576,
    )
    model = Decoder(config)
    init_weights(model, 0)
    export_model(config, ModuleWeights(model), folder / "model")
    fast.save_pretrained(folder / "model")
    rng = random.Random(0)

    def text(length: int) -> str:
        return "".join(rng.choice(LETTERS) for _ in range(length))

    for load in TARGETS:
        rows = [_row(load, text, rng) for _ in range(ROWS * (WARM_STEPS + STEPS))]
        (folder / f"{load}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _row(load: str, text: Callable[[int], str], rng: random.Random) -> dict[str, str]:
    if load.startswith("grpo"):
        return {"prompt": text(int(load.removeprefix("grpo-")))}
    skewed = round(math.exp(rng.uniform(math.log(16), math.log(512))))
    length = 256 if load == "sft-even" else skewed
    return {"prompt": text(8), "completion": text(length - 9)}


def windlass(folder: Path, load: str, work: Path, *overrides: str) -> list[float]:
    """Return the CPU time of each step's end, by our trainer."""
    import torch

    from windlass.train.build import build_trainer
    from windlass.train.callbacks.protocol import TrainerCallback
    from windlass.train.parallel.world import World
    from windlass.train.resolve import resolve

    ends: list[float] = []

    class Times(TrainerCallback):
        def on_step_end(self) -> None:
            ends.append(time.process_time())

    common = (
        f"model.from={folder / 'model'}",
        "~callbacks",
        f"data.mix.0.source={folder / f'{load}.jsonl'}",
        f"data.cache={work / 'cache'}",
        f"checkpoint.folder={work / 'run'}",
        "data.template=plain",
        f"data.batch_rows={ROWS}",
        f"duration={WARM_STEPS + STEPS}steps",
        "schedule.warmup=0steps",
        "optim.lr=1e-5",
    )
    sft = ("data.max_length=512", "data.microbatch_tokens=4096")
    grpo = (
        "data.max_length=80",
        "data.microbatch_tokens=20480",
        f"rollout.group_size={MEMBERS}",
        f"rollout.max_new_tokens={NEW_TOKENS}",
        f"rollout.num_slots={GROUPS * MEMBERS}",
        "rollout.drop_constant_groups=false",
        f"reward.verifiers=[{{name: length, settings: {{low: 0, high: {NEW_TOKENS}}}}}]",
    )
    recipe = "sft" if load.startswith("sft") else "grpo"
    trainer = build_trainer(
        resolve(recipe, (*common, *(sft if recipe == "sft" else grpo), *overrides)), World(device=torch.device("cpu"))
    )
    trainer.add_callback("times", Times())
    trainer.fit()
    return ends


def trl(folder: Path, load: str, work: Path) -> list[float]:
    """Return the CPU time of each step's end, by TRL's trainer."""
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

    ends: list[float] = []

    class Times(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.process_time())

    rows = load_dataset("json", data_files=str(folder / f"{load}.jsonl"), split="train", cache_dir=str(work / "cache"))
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32", attn_implementation="sdpa")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    common: dict[str, Any] = {
        "output_dir": str(work / "run"),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "max_steps": WARM_STEPS + STEPS,
        "learning_rate": 1e-5,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    trainer: Any
    if load.startswith("sft"):
        settings = SFTConfig(
            **common, per_device_train_batch_size=8, gradient_accumulation_steps=ROWS // 8, max_length=512
        )
        trainer = SFTTrainer(model, args=settings, train_dataset=rows, processing_class=tokenizer, callbacks=[Times()])
    else:
        settings = GRPOConfig(
            **common,
            per_device_train_batch_size=GROUPS * MEMBERS,
            num_generations=MEMBERS,
            max_completion_length=NEW_TOKENS,
            beta=0.0,
        )
        trainer = GRPOTrainer(
            model,
            reward_funcs=lambda completion_ids, **_: [1.0 - len(ids) / NEW_TOKENS for ids in completion_ids],
            args=settings,
            train_dataset=rows,
            processing_class=tokenizer,
            callbacks=[Times()],
        )
    trainer.train()
    return ends


def one(folder: Path, load: str, way: str, threads: int) -> None:
    """Run a way in this process and print its CPU-seconds per step."""
    import torch

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
        overrides = ("rollout.share_prompts=false",) if way == "windlass-plain" else ()
        run = trl(folder, load, Path(name)) if way == "trl" else windlass(folder, load, Path(name), *overrides)
    print(json.dumps((run[-1] - run[WARM_STEPS - 1]) / (len(run) - WARM_STEPS)))


def units(folder: Path, load: str) -> float:
    """Return the samples, or the mean number of trainable tokens, of a step."""
    if load.startswith("grpo"):
        return GROUPS * MEMBERS
    rows = [json.loads(line) for line in (folder / f"{load}.jsonl").read_text().splitlines()]
    return ROWS * sum(len(row["completion"]) + 1 for row in rows) / len(rows)


def main(arguments: Sequence[str]) -> int:
    """Print a line for each load and way, and whether the ratios reach their targets."""
    if arguments[:1] == ["--one"]:
        one(Path(arguments[1]), arguments[2], arguments[3], int(arguments[4]))
        return 0
    repeats = int(arguments[0]) if arguments else 3
    threads = arguments[1] if len(arguments) > 1 else "1"
    loads, is_reached = list(arguments[2:]) or list(TARGETS), True
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
        write_inputs(Path(name))
        for load in loads:
            ways = ["windlass", "trl", *(["windlass-plain"] if load.startswith("grpo") else [])]
            found: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(repeats):
                for way in ways:
                    command = [sys.executable, __file__, "--one", name, load, way, threads]
                    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                    found[way].append(units(Path(name), load) / float(done.stdout.splitlines()[-1]))
            rates = {way: median(values) for way, values in found.items()}
            shown = ", ".join(f"{way} {rate:.0f}" for way, rate in rates.items())
            ratios = ", ".join(f"{way} {rate / rates['trl']:.2f}x" for way, rate in rates.items() if way != "trl")
            is_reached = is_reached and rates["windlass"] >= TARGETS[load] * rates["trl"]
            unit = "samples" if load.startswith("grpo") else "trainable tokens"
            print(f"{load}: {unit} per CPU-s: {shown}; {ratios}, target {TARGETS[load]}x", flush=True)
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
