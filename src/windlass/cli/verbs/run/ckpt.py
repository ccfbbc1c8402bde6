"""`windlass ckpt`: list, verify, convert, compare and sample checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from windlass.cli.completion.files import complete_file, complete_folder
from windlass.cli.screen import emit, emit_json, emit_page, table, tell
from windlass.cli.verb import Family, examples_page, json_option, verb
from windlass.core.phrases import count, size

__all__ = ["ckpt_command"]


class Number(click.FloatRange):
    """Float range that rejects `nan` and `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert a value to a number; raise a usage error for `nan` and `inf`."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"invalid number {number}", param, ctx)
        return number


@click.group(
    cls=Family,
    name="ckpt",
    epilog=examples_page(
        "windlass ckpt ls checkpoints/first", "windlass ckpt export checkpoints/first/step-100 --to hf"
    ),
)
def ckpt_command() -> None:
    """Work with checkpoints: ls, verify, export, import, diff, compare-loss, generate,
    evaluate.

    CKPT is a folder `step-N`, a folder of those (the newest is used), a Hugging Face model folder, `hf:NAME` on the hub, or
    an OLMo-core checkpoint.
    """


@verb("windlass ckpt ls checkpoints/first", "windlass ckpt ls s3://bucket/first --json", name="ls")
@click.argument("folder", metavar="FOLDER", shell_complete=complete_file)
@json_option
def ls_command(folder: str, is_json: bool) -> None:
    """List the complete checkpoints of a folder, oldest first."""
    from windlass.train.checkpoint.files import open_files  # lazy: here and below, not for a help page
    from windlass.train.checkpoint.listing import list_committed

    found = list_committed(open_files(folder))
    if is_json:
        rows = [
            {"path": one.path, "step": one.step, "tokens": one.tokens, "is_permanent": one.is_permanent}
            for one in found
        ]
        emit_json("windlass.checkpoints/1", {"checkpoints": rows})
        return
    if not found:
        tell(f"no complete checkpoint in {folder}")
        return
    kinds = {True: "permanent", False: "ephemeral"}
    cells = [(str(one.step), f"{one.tokens:,}", kinds[one.is_permanent], one.path) for one in found]
    for line in table(("step", "tokens", "kind", "path"), cells):
        emit_page(line)


@verb("windlass ckpt verify checkpoints/first/step-100", name="verify")
@click.argument("checkpoint", metavar="CKPT", shell_complete=complete_file)
@json_option
def verify_command(checkpoint: str, is_json: bool) -> None:
    """Verify every byte of a checkpoint against its manifest."""
    from windlass.train.checkpoint.files import open_files  # lazy: see above
    from windlass.train.checkpoint.listing import find_checkpoint, verify_files

    files = find_checkpoint(open_files(checkpoint))
    found = verify_files(files)
    if is_json:
        emit_json("windlass.checkpoint/1", {"path": files.path, "files": found})
        return
    emit_page(f"{files.path} is complete: {count(len(found), 'file')}, {size(sum(found.values()))}")


@verb(
    "windlass ckpt export checkpoints/first --to hf --out first-hf",
    "windlass ckpt export checkpoints/first/step-100 --to hf --dtype float32 --tokenizer tokenizer.json",
    name="export",
)
@click.argument("checkpoint", metavar="CKPT", shell_complete=complete_file)
@click.option("--to", "form", type=click.Choice(["hf"]), default="hf", help="Target format: a Hugging Face folder.")
@click.option(
    "--out",
    default="",
    metavar="FOLDER",
    shell_complete=complete_folder,
    help="Output folder. [default: the checkpoint's name and `-hf`]",
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    default="bfloat16",
    help="Data type of the exported weights.",
)
@click.option(
    "--tokenizer",
    default="",
    metavar="PATH",
    shell_complete=complete_file,
    help="Tokenizer to copy, or `bytes`. [default: the recipe's]",
)
@click.option("--merge", is_flag=True, help="Merge an adapter with its base model. [default: PEFT's format]")
@click.option("--overwrite", is_flag=True, help="Replace an existing exported model.")
def export_command(
    checkpoint: str, form: str, out: str, dtype: str, tokenizer: str, merge: bool, overwrite: bool
) -> None:
    """Export a checkpoint's model to another format and print the folder."""
    from windlass.train.hf.import_export import export_hf  # lazy: torch costs seconds

    folder = out or f"{checkpoint.rstrip('/').removeprefix('hf:')}-{form}"
    made = export_hf(
        checkpoint,
        folder,
        dtype=dtype,  # type: ignore[arg-type]
        tokenizer=tokenizer or None,
        merge=merge,
        overwrite=overwrite,
    )
    if not (made / "tokenizer.json").is_file() and not (made / "tokenizer.model").is_file():
        tell("no tokenizer exported: the checkpoint names none on this machine; use `--tokenizer`")
    emit(str(made))


@verb(
    "windlass ckpt import hf:models/olmo2-1b --out checkpoints/warm",
    "windlass ckpt import hf:Qwen/Qwen3-0.6B --out checkpoints/qwen",
    name="import",
)
@click.argument("source", metavar="SOURCE", shell_complete=complete_file)
@click.option(
    "--out",
    required=True,
    metavar="FOLDER",
    shell_complete=complete_folder,
    help="Checkpoint folder without checkpoints.",
)
def import_command(source: str, out: str) -> None:
    """Import a model from another format as a checkpoint at step 0 and print its path.

    A training run can also load such a model directly: `checkpoint.load.path=hf:NAME`.
    """
    from windlass.train.hf.import_export import import_model  # lazy: torch costs seconds

    emit(import_model(source, out))


def _model_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of verbs that run a model: `--tokenizer`, `--device` and `--json`."""
    devices = click.Choice(["auto", "cpu", "cuda"])
    words = ("Tokenizer. [default: the recipe's]", "Device; `auto` uses a GPU if available.")
    named = click.option("--device", type=devices, default="auto", help=words[1])(json_option(function))
    return click.option("--tokenizer", default="", metavar="PATH", shell_complete=complete_file, help=words[0])(named)


@verb(
    'windlass ckpt generate checkpoints/first "Once upon a time"',
    'windlass ckpt generate hf:models/qwen3 "def f(" --tokens 100 --temperature 0.8 --top-p 0.9',
    name="generate",
)
@click.argument("checkpoint", metavar="CKPT", shell_complete=complete_file)
@click.argument("prompts", metavar="PROMPT...", nargs=-1, required=True)
@click.option("--tokens", type=click.IntRange(min=1), default=64, help="Maximum number of new tokens. [default: 64]")
@click.option("--temperature", type=Number(min=0), default=0.0, help="Sampling temperature; 0 is greedy.")
@click.option("--top-k", type=click.IntRange(min=1), help="Sample from the K most likely tokens.")
@click.option(
    "--top-p", type=Number(min=0, max=1, min_open=True), help="Sample from the smallest set with this probability."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Random seed.")
@_model_options
def generate_command(
    checkpoint: str,
    prompts: tuple[str, ...],
    tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    tokenizer: str,
    device: str,
    is_json: bool,
) -> None:
    """Generate continuations of prompts with a checkpoint's model and print both."""
    from windlass.train.generation.continuation import continue_texts  # lazy: torch costs seconds

    made = continue_texts(
        checkpoint,
        list(prompts),
        max_new_tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        tokenizer=tokenizer,
        device=device,
    )
    if is_json:
        pairs = [{"prompt": prompt, "continuation": text} for prompt, text in zip(prompts, made, strict=True)]
        emit_json("windlass.generated/1", {"texts": pairs})
        return
    for prompt, text in zip(prompts, made, strict=True):
        emit(prompt + text)


@verb(
    "windlass ckpt evaluate checkpoints/grpo held-out.jsonl reward.verifiers='[gsm8k]'",
    "windlass ckpt evaluate hf:models/qwen3 sums.jsonl reward.verifiers='[math]' samples=8 temperature=0.8 pass_at='[1, 8]'",
    "windlass ckpt evaluate checkpoints/reward held-out-pairs.jsonl",
    name="evaluate",
)
@click.argument("checkpoint", metavar="CKPT", shell_complete=complete_file)
@click.argument("rows", metavar="ROWS", shell_complete=complete_file)
@click.argument("settings", metavar="[NAME=VALUE]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--template",
    default="",
    metavar="NAME",
    shell_complete=complete_file,
    help="Chat template: a name or a file. [default: the recipe's]",
)
@click.option("--name", default="", metavar="NAME", help="Part of the metrics' names: `eval/NAME/pass@1`.")
@click.option(
    "--out", default="", metavar="FILE", shell_complete=complete_file, help="Write the metrics to a JSON file."
)
@_model_options
def evaluate_command(
    checkpoint: str,
    rows: str,
    settings: tuple[str, ...],
    template: str,
    tokenizer: str,
    name: str,
    out: str,
    device: str,
    is_json: bool,
) -> None:
    """Answer the prompts in ROWS and score the answers; with a reward model, compare the pairs in ROWS.

    NAME=VALUE is a setting of `evaluate` in a post-training recipe, such as `samples=8` (`windlass train sft --fields`).
    In a task of windlass the metrics are reported to its run.
    """
    from windlass import report  # lazy: here and below, not for a help page
    from windlass.core.files import write_json
    from windlass.post.evaluation import evaluate_checkpoint

    found = evaluate_checkpoint(checkpoint, rows, settings, template=template, tokenizer=tokenizer, device=device)
    metrics = {key.replace("eval/", f"eval/{name}/" if name else "eval/", 1): value for key, value in found.items()}
    report.metrics(metrics)
    if out:
        write_json(Path(out), metrics)
    if is_json:
        emit_json("windlass.evaluation/1", {"checkpoint": checkpoint, "rows": rows, "metrics": metrics})
        return
    for line in table(("metric", "value"), [(key, f"{value:.6g}") for key, value in metrics.items()]):
        emit_page(line)


@verb(
    "windlass ckpt diff checkpoints/first/step-100 checkpoints/first/step-200",
    "windlass ckpt diff checkpoints/first hf:models/olmo2-1b --json",
    name="diff",
)
@click.argument("a", metavar="A", shell_complete=complete_file)
@click.argument("b", metavar="B", shell_complete=complete_file)
@json_option
def diff_command(a: str, b: str, is_json: bool) -> None:
    """Compare two checkpoints: settings with their origins, trainer state and every weight."""
    from windlass.train.compare.checkpoints import diff_checkpoints  # lazy: torch costs seconds

    found = diff_checkpoints(a, b)
    if is_json:
        emit_json("windlass.checkpoint-diff/1", found.to_data())
        return
    emit_page(str(found))


@verb(
    "windlass ckpt compare-loss checkpoints/a checkpoints/b",
    "windlass ckpt compare-loss a/metrics.jsonl b/metrics.jsonl --metric 'eval/*' --tolerance 1e-6",
    name="compare-loss",
)
@click.argument("a", metavar="A", shell_complete=complete_file)
@click.argument("b", metavar="B", shell_complete=complete_file)
@click.option(
    "--metric", "metrics", multiple=True, metavar="GLOB", help="Metrics to compare; repeatable. [default: train/loss]"
)
@click.option("--tolerance", type=Number(min=0), default=0.0, help="Largest difference to ignore.")
@json_option
def compare_loss_command(a: str, b: str, metrics: tuple[str, ...], tolerance: float, is_json: bool) -> None:
    """Find the first step at which the metrics of two runs differ. A and B are files of the `jsonl` callback, or their folders."""
    from windlass.train.compare.losses import compare_losses  # lazy: only for this verb

    found = compare_losses(a, b, names=metrics or ("train/loss",), tolerance=tolerance)
    if is_json:
        emit_json("windlass.loss-comparison/1", found.to_data())
        return
    emit_page(str(found))


for _member in (
    diff_command,
    compare_loss_command,
    ls_command,
    verify_command,
    export_command,
    import_command,
    generate_command,
    evaluate_command,
):
    ckpt_command.add_command(_member)
