"""Samples per CPU second of the embedded engine beside `transformers.generate`: `python benches/bench_post_rollout.py [repeats [slots]]`.

The same weights, a llama of one million parameters, on one thread; both return the log-probability of every token. Two
loads: 32 groups of 8 samples with prompts of 6 tokens, and 256 single prompts of 3 to 24 tokens; at most 13 new tokens, and
an end token. The ways alternate, and the median of each counts. Exits with 1 where the engine is below its target.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from windlass.post.rollout.embedded import EmbeddedEngine
from windlass.post.rollout.types import Sample, SampleId, SampleRequest, Sampling
from windlass.train.hf.convert_weights import export_model
from windlass.train.hf.mapped import ModuleWeights
from windlass.train.model.config import AttentionConfig, ModelConfig
from windlass.train.model.decoder import Decoder
from windlass.train.model.init import init_weights

VOCABULARY, END, NEW_TOKENS = 32, 0, 13
TARGETS = {"32 groups of 8": 1.8, "256 uneven prompts": 1.2}
CONFIG = ModelConfig(
    family="llama",
    d_model=128,
    num_layers=4,
    vocab_size=VOCABULARY,
    hidden=512,
    attention=AttentionConfig(num_heads=4),
    is_tied=True,
    max_length=64,
)

Prompts = list[tuple[int, ...]]
Way = Callable[[int], tuple[int, int]]


def loads() -> dict[str, Prompts]:
    """Prompts of 256 samples; members of a group follow each other."""
    rng = random.Random(0)

    def made(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(1, VOCABULARY) for _ in range(length))

    groups = [made(6) for _ in range(32)]
    return {
        "32 groups of 8": [prompt for prompt in groups for _ in range(8)],
        "256 uneven prompts": [made(rng.randint(3, 24)) for _ in range(256)],
    }


def embedded(model: Decoder, prompts: Prompts, num_slots: int) -> Way:
    """Return a function that generates all samples with our engine, and counts samples and tokens."""
    engine = EmbeddedEngine(
        CONFIG,
        dict(model.named_parameters()),
        num_slots=num_slots,
        max_length=max(map(len, prompts)) + NEW_TOKENS,
        max_open=512,
    )
    group_of = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}

    def run(seed: int) -> tuple[int, int]:
        sampling = Sampling(max_new_tokens=NEW_TOKENS, stop_ids=(END,), seed=seed)
        works = [
            SampleRequest(id=SampleId(group=group_of[prompt], member=number), prompt_ids=prompt, sampling=sampling)
            for number, prompt in enumerate(prompts)
        ]
        assert engine.submit(works) == len(works)
        samples: list[Sample] = []
        while len(samples) < len(works):
            samples += engine.poll(60.0)
        return len(samples), sum(len(sample.logp) for sample in samples)

    return run


def transformers(folder: Path, prompts: Prompts) -> Way:
    """Return a function that generates all samples with `generate`, left-padded, in one batch."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    longest = max(map(len, prompts))
    ids_BT = torch.tensor([[END] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask_BT = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])

    def run(seed: int) -> tuple[int, int]:
        torch.manual_seed(seed)
        with torch.inference_mode():
            made = model.generate(
                ids_BT,
                attention_mask=mask_BT,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                max_new_tokens=NEW_TOKENS,
                eos_token_id=END,
                pad_token_id=END,
                return_dict_in_generate=True,
                output_scores=True,
            )
            logp_BT = model.compute_transition_scores(made.sequences, made.scores, normalize_logits=True)
        new_BT = made.sequences[:, longest:]
        is_before_BT = torch.cumsum(new_BT == END, dim=1) - (new_BT == END).int() == 0
        answers = [row[kept].tolist() for row, kept in zip(logp_BT, is_before_BT, strict=True)]
        return len(answers), sum(map(len, answers))

    return run


def compare(ways: dict[str, Way], repeats: int) -> dict[str, tuple[float, float]]:
    """Return the median samples and tokens per second of each way, taken in turn after a warm-up."""
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for repeat in range(-1, repeats):
        for name, way in ways.items():
            begin_s = time.process_time()
            num_samples, num_tokens = way(repeat + 1)
            took_s = time.process_time() - begin_s
            if repeat >= 0:
                rates[name].append((num_samples / took_s, num_tokens / took_s))
    return {
        name: (median(rate for rate, _ in pairs), median(rate for _, rate in pairs)) for name, pairs in rates.items()
    }


def main(arguments: Sequence[str]) -> int:
    """Print a line for each load, and whether the engine reaches its targets."""
    torch.set_num_threads(1)
    repeats = int(arguments[0]) if arguments else 9
    num_slots = int(arguments[1]) if len(arguments) > 1 else 256
    model = Decoder(CONFIG)
    init_weights(model, 0)
    is_reached = True
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as name:
        export_model(CONFIG, ModuleWeights(model), Path(name) / "hf")
        for load, prompts in loads().items():
            ways = {
                "embedded": embedded(model, prompts, num_slots),
                "transformers": transformers(Path(name) / "hf", prompts),
            }
            rates = compare(ways, repeats)
            ratio = rates["embedded"][0] / rates["transformers"][0]
            is_reached = is_reached and ratio >= TARGETS[load]
            shown = ", ".join(
                f"{way} {samples:.0f} samples per CPU-s ({tokens:.0f} tokens)"
                for way, (samples, tokens) in rates.items()
            )
            print(f"{load}: {shown}; {ratio:.2f}x, target {TARGETS[load]}x", flush=True)
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
