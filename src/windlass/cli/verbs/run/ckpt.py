"""`windlass ckpt`: what can be done with checkpoints of training once they are there."""

from __future__ import annotations

import math
from typing import Any

import click

from windlass.cli.completion.files import complete_file, complete_folder
from windlass.cli.screen import emit, emit_json, emit_page, table, tell
from windlass.cli.verb import Family, examples_page, json_option, verb
from windlass.core.phrases import count, size

__all__ = ["ckpt_command"]


class Number(click.FloatRange):
    """A range of numbers without `nan` and `inf`, which no comparison finds outside."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or a usage error."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is no number to work with", param, ctx)
        return number


@click.group(
    cls=Family,
    name="ckpt",
    epilog=examples_page(
        "windlass ckpt ls checkpoints/first", "windlass ckpt export checkpoints/first/step-100 --to hf"
    ),
)
def ckpt_command() -> None:
    """Use checkpoints: ls, verify, export, import, diff, compare-loss, generate.

    A CKPT is a folder `step-N`, a folder of such (the newest is taken), a folder of Hugging Face, `hf:NAME` on its hub, or a
    checkpoint of OLMo-core.
    """


@verb("windlass ckpt ls checkpoints/first", "windlass ckpt ls s3://bucket/first --json", name="ls")
@click.argument("folder", metavar="FOLDER", shell_complete=complete_file)
@json_option
def ls_command(folder: str, is_json: bool) -> None:
    """List the checkpoints of a folder that are whole, the oldest first."""
    from windlass.train.checkpoint.storage.files import open_files  # lazy: here and below, a help page needs none of it
    from windlass.train.checkpoint.storage.listing import list_committed

    found = list_committed(open_files(folder))
    if is_json:
        rows = [
            {"path": one.path, "step": one.step, "tokens": one.tokens, "is_permanent": one.is_permanent}
            for one in found
        ]
        emit_json("windlass.checkpoints/1", {"checkpoints": rows})
        return
    if not found:
        tell(f"no whole checkpoint in {folder}")
        return
    kinds = {True: "permanent", False: "ephemeral"}
    cells = [(str(one.step), f"{one.tokens:,}", kinds[one.is_permanent], one.path) for one in found]
    for line in table(("step", "tokens", "kind", "path"), cells):
        emit_page(line)


@verb("windlass ckpt verify checkpoints/first/step-100", name="verify")
@click.argument("checkpoint", metavar="CKPT", shell_complete=complete_file)
@json_option
def verify_command(checkpoint: str, is_json: bool) -> None:
    """Read every byte of a checkpoint and compare it with what was written."""
    from windlass.train.checkpoint.storage.files import open_files  # lazy: see above
    from windlass.train.checkpoint.verifying import find_checkpoint, verify_files

    files = find_checkpoint(open_files(checkpoint))
    found = verify_files(files)
    if is_json:
        emit_json("windlass.checkpoint/1", {"path": files.path, "files": found})
        return
    emit_page(f"{files.path} is whole: {count(len(found), 'file')}, {size(sum(found.values()))}")


@verb(
    "windlass ckpt export checkpoints/first --to hf --out first-hf",
    "windlass ckpt export checkpoints/first/step-100 --to hf --dtype float32 --tokenizer tokenizer.json",
    name="export",
)
@click.argument("checkpoint", metavar="CKPT", shell_complete=complete_file)
@click.option("--to", "form", type=click.Choice(["hf"]), default="hf", help="The form: a folder of Hugging Face.")
@click.option(
    "--out",
    default="",
    metavar="FOLDER",
    shell_complete=complete_folder,
    help="Where; by default the checkpoint's name and `-hf`.",
)
@click.option(
    "--dtype", type=click.Choice(["bfloat16", "float16", "float32"]), default="bfloat16", help="Of the weights there."
)
@click.option(
    "--tokenizer",
    default="",
    metavar="PATH",
    shell_complete=complete_file,
    help="Copy this one (or `bytes`); by default the recipe's.",
)
@click.option("--overwrite", is_flag=True, help="Replace the exported model that is there.")
def export_command(checkpoint: str, form: str, out: str, dtype: str, tokenizer: str, overwrite: bool) -> None:
    """Write a checkpoint's model in the form of others; prints the folder."""
    from windlass.train.hf.convert import export_hf  # lazy: torch costs seconds

    folder = out or f"{checkpoint.rstrip('/').removeprefix('hf:')}-{form}"
    made = export_hf(checkpoint, folder, dtype=dtype, tokenizer=tokenizer or None, overwrite=overwrite)  # type: ignore[arg-type]
    if not (made / "tokenizer.json").is_file() and not (made / "tokenizer.model").is_file():
        tell("no tokenizer was written: the checkpoint names none that is on this machine; give `--tokenizer`")
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
    help="A folder for checkpoints, which holds none yet.",
)
def import_command(source: str, out: str) -> None:
    """Write a model of others as a checkpoint at step 0; prints its path.

    A run takes such a model without this too: `checkpoint.load.path=hf:NAME`.
    """
    from windlass.train.hf.convert import import_model  # lazy: torch costs seconds

    emit(import_model(source, out))


@verb(
    'windlass ckpt generate checkpoints/first "Once upon a time"',
    'windlass ckpt generate hf:models/qwen3 "def f(" --tokens 100 --temperature 0.8 --top-p 0.9',
    name="generate",
)
@click.argument("checkpoint", metavar="CKPT", shell_complete=complete_file)
@click.argument("prompts", metavar="PROMPT...", nargs=-1, required=True)
@click.option("--tokens", type=click.IntRange(min=1), default=64, help="New tokens, at most; 64 without.")
@click.option("--temperature", type=Number(min=0), default=0.0, help="0: always the likeliest token.")
@click.option("--top-k", type=click.IntRange(min=1), help="Draw from so many likeliest tokens.")
@click.option("--top-p", type=Number(min=0, max=1, min_open=True), help="Draw from this share of likelihood.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Decides what is drawn.")
@click.option(
    "--tokenizer", default="", metavar="PATH", shell_complete=complete_file, help="Another than the recipe's."
)
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="auto: a GPU if there is one."
)
@json_option
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
    """Continue prompts with a checkpoint's model, and print prompt and continuation."""
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
    "windlass ckpt diff checkpoints/first/step-100 checkpoints/first/step-200",
    "windlass ckpt diff checkpoints/first hf:models/olmo2-1b --json",
    name="diff",
)
@click.argument("a", metavar="A", shell_complete=complete_file)
@click.argument("b", metavar="B", shell_complete=complete_file)
@json_option
def diff_command(a: str, b: str, is_json: bool) -> None:
    """Compare two checkpoints: settings with their origins, the trainer's state, every weight, and where they part."""
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
@click.option("--metric", "metrics", multiple=True, metavar="GLOB", help="Other metrics than train/loss; repeatable.")
@click.option("--tolerance", type=Number(min=0), default=0.0, help="Largest difference that counts as none.")
@json_option
def compare_loss_command(a: str, b: str, metrics: tuple[str, ...], tolerance: float, is_json: bool) -> None:
    """Find the first step at which the metrics of two runs part. A and B are files of the `jsonl` callback or their folders."""
    from windlass.train.compare.losses import compare_losses  # lazy: only this verb

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
):
    ckpt_command.add_command(_member)
