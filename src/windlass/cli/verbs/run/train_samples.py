"""`windlass train samples`: read what a policy wrote, with its rewards."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import click

from windlass.cli.completion.files import complete_folder
from windlass.cli.screen import emit, emit_page, printable, table, tell
from windlass.cli.verb import verb
from windlass.core.errors import NotFoundError

if TYPE_CHECKING:
    from windlass.post import StoredSample

__all__ = ["checkpoints_of", "samples_command"]

_LIMIT = 20
_TEXT_COLUMNS = 32


@verb(
    "windlass train samples checkpoints/grpo",
    "windlass train samples last --step 40 --group 1283",
    "windlass train samples checkpoints/grpo --json > samples.jsonl",
    name="samples",
)
@click.argument("where", metavar="RUN", shell_complete=complete_folder)
@click.option("--step", type=click.IntRange(min=0), help="Only samples that this step learned from, counted from 0.")
@click.option("--group", type=click.IntRange(min=0), help="Only samples of this group, with their whole text.")
@click.option(
    "--limit", type=click.IntRange(min=1), help=f"Most samples to print. [default: {_LIMIT}; all with --json]"
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON Lines, one versioned object a sample.")
def samples_command(where: str, step: int | None, group: int | None, limit: int | None, is_json: bool) -> None:
    """Print the answers that a policy generated in a run of `grpo`, with rewards, versions and ends.

    RUN is a run, its folder of checkpoints, or a folder of samples. This only reads, also while the run writes.
    """
    from windlass.post import read_samples  # lazy: not for a help page

    found = read_samples(checkpoints_of(where), step=step, group=group)
    if is_json:
        for sample in islice(found, limit):
            emit(json.dumps(_data(sample), ensure_ascii=False))
        return
    most = limit or (_LIMIT if group is None else None)
    shown = list(islice(found, most))
    for heading, members in groupby(shown, key=_heading):
        emit_page(heading)
        page = _emit_table if group is None else _emit_whole
        page(list(members))
    if not shown:
        tell("no sample matches")
    elif next(found, None) is not None:
        tell(f"only the first {most} samples; see more with `--limit`, `--step` or `--group`")


def checkpoints_of(where: str) -> Path:
    """Return a folder itself, or the folder of checkpoints with samples of the run that `where` names.

    Raises:
        NotFoundError: there is no such run or folder, or the run has no samples.
    """
    if Path(where).is_dir():
        return Path(where)
    from windlass.runs.home import Home  # lazy: only for runs
    from windlass.runs.store import find

    run = find(Home.default(), where)
    folders = [run.checkpoints(task) for task in run.facts().tasks]
    found = [folder for folder in folders if (folder / "samples").is_dir()]
    if len(found) != 1:
        tasks = ", ".join(f"`{folder}`" for folder in found) or "none"
        hint = "name the folder of checkpoints" if found else "its checkpoints may be at another site or folder"
        raise NotFoundError(f"{run.id} has {len(found)} tasks with samples: {tasks}", hint=hint, code="no-samples")
    return found[0]


def _heading(sample: StoredSample) -> str:
    place = f"dropped ({sample.dropped})" if sample.dropped else "no step yet" if sample.step is None else None
    where = place or f"step {sample.step}"
    return f"{where}, group {sample.scored.sample.id.group}: {_one_line(sample.prompt, 2 * _TEXT_COLUMNS)}"


def _emit_table(samples: Sequence[StoredSample]) -> None:
    rows = [
        (
            str(each.scored.sample.id.member),
            _number(each.scored.reward),
            _versions(each),
            str(len(each.scored.sample.ids)),
            each.scored.sample.finish,
            _one_line(each.scored.text, _TEXT_COLUMNS),
        )
        for each in samples
    ]
    for line in table(("member", "reward", "version", "tokens", "finish", "answer"), rows, indent="  "):
        emit_page(line)


def _emit_whole(members: Sequence[StoredSample]) -> None:
    for each in members:
        scored, sample = each.scored, each.scored.sample
        parts = ", ".join(f"{name} {_number(value)}" for name, value in scored.rewards.items())
        times = ", ".join(f"{name} {value:.2f} s" for name, value in sample.seconds.items())
        facts = [f"reward {_number(scored.reward)} ({parts})", f"version {_versions(each)}"]
        facts += [f"{len(sample.ids)} tokens", sample.finish, *([times] if times else []), *_episode(each)]
        emit_page(f"  member {sample.id.member}: {', '.join(facts)}")
        for line in printable(scored.text).split("\n"):
            emit_page(f"    {line}".rstrip())
    rewards = [each.scored.reward for each in members if not math.isnan(each.scored.reward)]
    if rewards:
        emit_page(f"  mean reward {mean(rewards):.2f}")


def _episode(stored: StoredSample) -> list[str]:
    """Return what an environment made of a sample: its turns with their rewards, and its error."""
    episode = stored.scored.sample.episode
    if episode is None:
        return []
    turns = ", ".join(_number(turn.reward) for turn in episode.turns)
    forks = [f"history rewritten {len(episode.forks)} times"] if episode.forks else []
    errors = [f"error: {printable(episode.error)}"] if episode.error else []
    return [f"{len(episode.turns)} turns in {episode.environment} (rewards {turns or '-'})", *forks, *errors]


def _versions(sample: StoredSample) -> str:
    """Return the versions of weights that wrote a sample, as `3` or `3..5`."""
    found = [span.version for span in sample.scored.sample.spans if span.version is not None]
    return "-" if not found else str(min(found)) + (f"..{max(found)}" if max(found) > min(found) else "")


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.2f}"


def _one_line(text: str, columns: int) -> str:
    line = printable(text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t"))
    return line if len(line) <= columns else line[: columns - 3] + "..."


def _data(stored: StoredSample) -> dict[str, object]:
    scored, sample = stored.scored, stored.scored.sample
    return {
        "schema": "windlass.sample/1",
        "step": stored.step,
        "group": sample.id.group,
        "member": sample.id.member,
        "attempt": sample.id.attempt,
        "dropped": stored.dropped,
        "prompt": stored.prompt,
        "text": scored.text,
        "reward": None if math.isnan(scored.reward) else scored.reward,
        "rewards": dict(scored.rewards),
        "finish": sample.finish,
        "spans": [
            {"start": each.start, "stop": each.stop, "version": each.version, "origin": each.origin}
            for each in sample.spans
        ],
        "episode": None if sample.episode is None else asdict(sample.episode),
        "seconds": dict(sample.seconds),
        "stored_at": stored.stored_at,
        "prompt_ids": list(scored.prompt_ids),
        "ids": list(sample.ids),
        "logp": list(sample.logp),
        "raw_logp": None if sample.raw_logp is None else list(sample.raw_logp),
    }
