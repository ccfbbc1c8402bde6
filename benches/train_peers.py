"""Trainers of the same network on the same tokens: one rank of one peer, as `bench_train.py` starts it.

    python benches/train_peers.py PEER SETTINGS.json OUT.json      (in each rank; RANK and WORLD_SIZE from torchrun)

Peers: `plain` (a bare torch loop around a short reference model), `hf` (transformers.Trainer), `olmo-core`
(ai2-olmo-core's Trainer and transformer train module), `windlass`. All train a pre-norm llama without biases, untied,
AdamW, gradients clipped at 1.0, a constant rate, and read the same raw file of uint16 tokens.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

WARM_STEPS = 5


@dataclass(kw_only=True)
class Settings:
    """The same for every peer of a comparison; `batch` is in rows, over all processes."""

    width: int
    layers: int
    heads: int
    hidden: int
    vocab: int
    length: int
    batch: int
    steps: int
    seed: int
    data: str
    folder: str
    device: str
    bf16: bool
    compile: bool
    started_at: float

    @property
    def tokens(self) -> int:
        return self.batch * self.length


class Stamps:
    """One time per optimiser step, wall and CPU of this process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.losses: list[float] = []
        self.imported_s = 0.0

    def step(self, loss: float | None = None) -> None:
        if self.settings.device == "cuda":
            import torch

            torch.cuda.synchronize()
        self.wall.append(time.time())
        self.cpu.append(time.process_time())
        if loss is not None:
            self.losses.append(loss)

    def result(self) -> dict[str, Any]:
        settings, (_, world) = self.settings, place()
        wall, cpu = _gaps(self.wall), _gaps(self.cpu)
        found: dict[str, Any] = {
            "tokens_per_cpu_s": settings.tokens / world / median(cpu),
            "tokens_per_s": settings.tokens / median(wall),
            "first_step_cpu_s": self.cpu[0],
            "first_step_s": self.wall[0] - settings.started_at,
            "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "last_loss": self.losses[-1] if self.losses else None,
            "num_steps": len(self.wall),
        }
        if settings.device == "cuda":
            import torch

            found["peak_gpu_gb"] = torch.cuda.max_memory_allocated() / 1e9
            found["gpu"] = torch.cuda.get_device_name()
        return found


def _gaps(stamps: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(stamps)][WARM_STEPS:]


def place() -> tuple[int, int]:
    """Rank and world size."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


# ---------------------------------------------------------------------------------------------------- the bare loop


def reference_model(settings: Settings) -> Any:
    """The network, as short as it can be written."""
    import torch
    from torch import nn
    from torch.nn import functional

    width, size = settings.width, settings.width // settings.heads

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(2))
            self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
            self.gate, self.up = (nn.Linear(width, settings.hidden, bias=False) for _ in range(2))
            self.down = nn.Linear(settings.hidden, width, bias=False)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            rows, length, _ = x.shape
            y = self.norms[0](x)
            q, k, v = (m(y).view(rows, length, -1, size).transpose(1, 2) for m in (self.q, self.k, self.v))
            q, k = (t * cos + torch.cat((-t[..., size // 2 :], t[..., : size // 2]), -1) * sin for t in (q, k))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(y.transpose(1, 2).reshape(rows, length, width))
            y = self.norms[1](x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(settings.vocab, width)
            self.blocks = nn.ModuleList(Block() for _ in range(settings.layers))
            self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, settings.vocab, bias=False)
            angles = torch.outer(torch.arange(settings.length), 1e4 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, ids: Any) -> Any:
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            logits = self.head(self.norm(x))[:, :-1].reshape(-1, settings.vocab)
            return functional.cross_entropy(logits.float(), ids[:, 1:].reshape(-1))

    return Network()


def rows(settings: Settings) -> Iterator[Any]:
    """This rank's rows of each batch, in a shuffled order."""
    import numpy as np
    import torch

    rank, world = place()
    tokens = np.memmap(settings.data, dtype=np.uint16, mode="r")
    order = np.random.default_rng(settings.seed + 1).permutation(len(tokens) // settings.length)
    share = settings.batch // world
    for step in range(settings.steps):
        first = step * settings.batch + rank * share
        taken = [tokens[i * settings.length : (i + 1) * settings.length] for i in order[first : first + share]]
        yield torch.from_numpy(np.stack(taken).astype(np.int64)).to(settings.device)


def run_plain(settings: Settings, stamps: Stamps) -> None:
    """Nothing but torch."""
    import torch

    torch.manual_seed(settings.seed)
    if place()[1] > 1:
        torch.distributed.init_process_group("nccl" if settings.device == "cuda" else "gloo")
    network = reference_model(settings).to(settings.device)
    model: Any = torch.nn.parallel.DistributedDataParallel(network) if place()[1] > 1 else network
    model = torch.compile(model) if settings.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for ids in rows(settings):
        with torch.autocast(settings.device, dtype=torch.bfloat16, enabled=settings.bf16):
            loss = model(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        stamps.step(float(loss.detach()))


# ------------------------------------------------------------------------------------------------------- the others


def run_hf(settings: Settings, stamps: Stamps) -> None:
    """transformers.Trainer around its Llama."""
    import numpy as np
    import torch
    import transformers

    _rank, world = place()
    tokens = np.memmap(settings.data, dtype=np.uint16, mode="r")

    class Rows(torch.utils.data.Dataset[dict[str, Any]]):
        def __len__(self) -> int:
            return len(tokens) // settings.length

        def __getitem__(self, number: int) -> dict[str, Any]:
            taken = tokens[number * settings.length : (number + 1) * settings.length]
            row = torch.from_numpy(taken.astype(np.int64))
            return {"input_ids": row, "labels": row}

    class Stamp(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            stamps.step()

        def on_log(self, *_: Any, logs: dict[str, float] | None = None, **__: Any) -> None:
            if logs and "loss" in logs:
                stamps.losses.append(logs["loss"])

    torch.manual_seed(settings.seed)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=settings.vocab,
            hidden_size=settings.width,
            intermediate_size=settings.hidden,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            rms_norm_eps=1e-5,
            max_position_embeddings=settings.length,
            use_cache=False,
            attn_implementation="sdpa",
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    )
    backend = {"ddp_backend": "gloo"} if world > 1 and settings.device == "cpu" else {}
    arguments = transformers.TrainingArguments(
        output_dir=settings.folder,
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch // world,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        weight_decay=0.1,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        logging_steps=5,
        save_strategy="no",
        report_to="none",
        use_cpu=settings.device == "cpu",
        bf16=settings.bf16,
        torch_compile=settings.compile,
        disable_tqdm=True,
        seed=settings.seed,
        **backend,
    )
    transformers.Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[Stamp()]).train()


def run_olmo_core(settings: Settings, stamps: Stamps) -> None:
    """ai2-olmo-core, as its documentation puts the parts together."""
    from olmo_core import config, data, train, utils
    from olmo_core.nn.transformer import TransformerConfig
    from olmo_core.optim import AdamWConfig
    from olmo_core.optim.scheduler import ConstantScheduler
    from olmo_core.train import callbacks, train_module

    _, world = place()
    backend = "gloo" if settings.device == "cpu" else "cpu:gloo,cuda:nccl"
    train.prepare_training_environment(seed=settings.seed, backend=backend if world > 1 else None)
    utils.seed_all(settings.seed)
    model = TransformerConfig.llama_like(
        d_model=settings.width,
        vocab_size=settings.vocab,
        n_layers=settings.layers,
        n_heads=settings.heads,
        rope_theta=10_000,
        layer_norm_eps=1e-5,
    )
    if model.block.feed_forward.hidden_size != settings.hidden:
        raise ValueError(f"the hidden size is {model.block.feed_forward.hidden_size}, not {settings.hidden}")
    spread = train_module.TransformerDataParallelConfig(name="ddp") if world > 1 else None
    if settings.bf16:
        spread = train_module.TransformerDataParallelConfig(name="fsdp", param_dtype=config.DType.bfloat16)
    module = train_module.TransformerTrainModuleConfig(
        rank_microbatch_size=settings.tokens // world,
        max_sequence_length=settings.length,
        optim=AdamWConfig(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
        max_grad_norm=1.0,
        scheduler=ConstantScheduler(),
        compile_model=settings.compile,
        dp_config=spread,
    ).build(model.build(init_device="meta"))
    dataset = data.NumpyFSLDatasetConfig(
        paths=[settings.data],
        sequence_length=settings.length,
        work_dir=settings.folder,
        tokenizer=data.TokenizerConfig(vocab_size=settings.vocab, eos_token_id=0, pad_token_id=0),
    ).build()
    loader = data.NumpyDataLoaderConfig(global_batch_size=settings.tokens, seed=settings.seed, num_workers=0).build(
        dataset, dp_process_group=module.dp_process_group
    )

    class Stamp(callbacks.Callback):  # type: ignore[misc]
        priority = -10

        def post_step(self) -> None:
            stamps.step()

        def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
            stamps.losses.extend(value for name, value in metrics.items() if name == "train/CE loss")

    quiet = callbacks.ConsoleLoggerCallback(log_interval=1000, metrics_log_interval=1000)
    trainer = (
        train.TrainerConfig(
            save_folder=os.path.join(settings.folder, "saved"),
            save_overwrite=True,
            max_duration=train.Duration.steps(settings.steps),
            no_checkpoints=True,
            metrics_collect_interval=5,
        )
        .with_callback("console", quiet)
        .build(module, loader)
    )
    trainer.add_callback("stamp", Stamp())
    trainer.fit()
    train.teardown_training_environment()


def run_windlass(settings: Settings, stamps: Stamps) -> None:
    """windlass, from a recipe, with the callbacks every run has."""
    from windlass import train
    from windlass.train.build import building

    class Stamp(train.TrainerCallback):
        def on_step_end(self) -> None:
            stamps.step()

        def on_metrics(self, step: int, metrics: Any) -> None:
            stamps.losses.append(metrics["train/loss"])

    recipe = train.Recipe(
        name="bench",
        model=train.ModelConfig(
            d_model=settings.width,
            num_layers=settings.layers,
            vocab_size=settings.vocab,
            hidden=settings.hidden,
            attention=train.AttentionConfig(num_heads=settings.heads),
            max_length=settings.length,
        ),
        data=train.DataConfig(
            sources=(train.SourceConfig(path=(settings.data,), dtype="uint16"),),
            sequence_length=settings.length,
            batch_tokens=settings.tokens,
        ),
        duration=train.Duration.steps(settings.steps),
        optim=train.AdamWConfig(lr=1e-3),
        schedule=train.ConstantConfig(),
        parallel=train.ParallelConfig(
            data="auto",
            precision="bfloat16" if settings.bf16 else "float32",
            compile=settings.compile,
        ),
        seed=settings.seed,
        device="cuda" if settings.device == "cuda" else "cpu",
        no_checkpoints=True,
    )
    with building(recipe) as trainer:
        trainer.add_callback("stamp", Stamp())
        trainer.fit()


PEERS: dict[str, tuple[Callable[[Settings, Stamps], None], str]] = {
    "plain": (run_plain, "torch"),
    "hf": (run_hf, "transformers"),
    "olmo-core": (run_olmo_core, "olmo_core.train"),
    "windlass": (run_windlass, "windlass.train.build"),
}
"""A peer, and what it imports."""


def main() -> None:
    """Run one rank; rank 0 writes what it measured."""
    peer, settings_path, out = sys.argv[1:]
    settings = Settings(**json.loads(Path(settings_path).read_text()))
    run, package = PEERS[peer]
    if settings.steps == 0:
        begun, used = time.time(), time.process_time()
        importlib.import_module(package)
        found: dict[str, Any] = {"import_s": time.time() - begun, "import_cpu_s": time.process_time() - used}
        found["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        Path(out).write_text(json.dumps(found))
        return
    import torch

    torch.set_num_threads(1)
    stamps = Stamps(settings)
    run(settings, stamps)
    if place()[0] == 0:
        Path(out).write_text(json.dumps(stamps.result()))


if __name__ == "__main__":
    main()
