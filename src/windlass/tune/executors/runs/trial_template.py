"""Template for a sweep's trials: a plan with its pins, made once, to which each trial adds overrides.

All trials therefore run the same code, environment and data, even if the user's files change.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from windlass.config.emit import to_yaml
from windlass.config.encode import to_data
from windlass.config.loading import from_data, load_config
from windlass.config.path import join_path, split_path
from windlass.core.errors import PreconditionError, UsageError
from windlass.core.files import write_json
from windlass.core.json_text import read_json
from windlass.core.names import new_token
from windlass.launcher.prepare import Options, Prepared
from windlass.launcher.run import Run
from windlass.plan.plan import Plan
from windlass.plan.planner import make_plan
from windlass.runs.home import Home
from windlass.runs.store import RunFolder
from windlass.spec import Experiment

__all__ = [
    "TRIAL_TEMPLATE",
    "TrialTemplate",
    "capacity_of",
    "check_name",
    "ensure_trial_template",
    "needed",
    "overrides_of",
    "path_of",
    "read_trial_template",
]


TRIAL_TEMPLATE = "experiment.json"
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTemplate:
    """Plan that all trials of a sweep share.

    Attributes:
        sweep: the sweep's name, which is the runs' group unless the experiment names one.
        token: 128 random bits; run ids are derived from it, so that a run is found again and never duplicated.
        base: folder that relative paths of the experiment are relative to.
    """

    sweep: str
    token: str
    plan: Plan
    base: Path

    @classmethod
    def of(cls, prepared: Prepared, sweep: str) -> TrialTemplate:
        """Create a template from a planned experiment, leaving out its `sweep:` section."""
        experiment = replace(prepared.experiment, sweep=None)
        plan = replace(prepared.plan, experiment=to_data(experiment))  # type: ignore[arg-type]  # JSON values
        return cls(sweep=sweep, token=new_token(), plan=plan, base=prepared.base)

    def write(self, folder: Path) -> Path:
        """Write the template to a sweep's folder, and return the path of the file."""
        path = folder / TRIAL_TEMPLATE
        data = {"sweep": self.sweep, "token": self.token, "base": str(self.base), "plan": self.plan.to_data()}
        write_json(path, data)
        return path

    def run_id(self, trial: str, attempt: int) -> str:
        """Return the run id for an attempt, which never changes."""
        text = "\0".join((self.token, trial, str(attempt)))
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return f"{self.plan.name}-" + "".join(_LETTERS[byte % 32] for byte in digest)

    def find_run(self, trial: str, attempt: int, home: Home) -> Run | None:
        """Return the run of an attempt; None unless its launch has written the plan."""
        folder = RunFolder(home.runs / self.run_id(trial, attempt))
        return Run(folder, home) if (folder.path / "plan.json").exists() else None

    def prepared(self, overrides: tuple[str, ...], home: Home, *, trial: str = "") -> Prepared:
        """Return the plan of one trial, ready to launch. Pure, except that planning reads the site's state.

        Raises:
            SpecError: an override is invalid, or the site cannot provide what the trial requests.
        """
        given = self._overrides(overrides)
        old = self.plan
        text = to_yaml(from_data(Experiment, dict(old.experiment), source=f"sweep {self.sweep}"))
        loaded = load_config(Experiment, text, source=f"the experiment of sweep {self.sweep}", overrides=given)
        plan = make_plan(
            loaded.value,
            old.pins,
            old.site,
            overrides=(*old.overrides, *given),
            is_debug=old.is_debug,
            best_effort=old.is_best_effort,
            origins=loaded.origins,
        )
        notes = (*plan.notes, f"trial {trial} of sweep {self.sweep}") if trial else plan.notes
        return Prepared(
            experiment=loaded.value, plan=replace(plan, notes=notes), base=self.base, home=home, options=Options()
        )

    def _overrides(self, overrides: tuple[str, ...]) -> tuple[str, ...]:
        context = self.plan.experiment.get("context")
        has_group = isinstance(context, dict) and bool(context.get("group"))
        return overrides if has_group else (*overrides, f'context.group="{self.sweep}"')


def ensure_trial_template(folder: Path, prepared: Prepared | None, sweep: str) -> TrialTemplate:
    """Read the template in a sweep's folder, or create it from an experiment. Idempotent.

    Raises:
        PreconditionError: there is neither a template nor an experiment.
    """
    if prepared is not None and not (folder / TRIAL_TEMPLATE).exists():
        TrialTemplate.of(prepared, sweep).write(folder)
    return read_trial_template(folder)


def read_trial_template(folder: Path) -> TrialTemplate:
    """Read what `write` wrote.

    Raises:
        PreconditionError: the file is missing or damaged.
    """
    path = folder / TRIAL_TEMPLATE
    try:
        data = read_json(path)
        assert isinstance(data, dict)
        plan = Plan.from_data(data["plan"])
        return TrialTemplate(sweep=data["sweep"], token=data["token"], plan=plan, base=Path(data["base"]))
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise PreconditionError(
            f"cannot read the trials' experiment in {path}: {error}",
            hint="windlass sweep launch FILE starts a new sweep",
            code="run-damaged",
        ) from error


_NUM_AT_A_SITE = 64
"""Default number of concurrent runs at a site; more would only lengthen its queue."""


def needed(plan: Plan) -> dict[str, float]:
    """Return the CPUs and GPUs that a trial's largest task needs on all its nodes."""
    most: dict[str, float] = {"CPU": 1.0}
    for task in plan.tasks:
        for name, amount in {"CPU": task.shape.cpus or 1.0, "GPU": float(task.shape.gpus)}.items():
            most[name] = max(most.get(name, 0.0), amount * task.shape.nodes)
    return {name: amount for name, amount in most.items() if amount}


def capacity_of(template: TrialTemplate) -> int:
    """Return the default number of concurrent runs: as many as fit on this machine, or a fixed number at a site."""
    machine = template.plan.site.machine
    if machine is None:
        return _NUM_AT_A_SITE
    need = needed(template.plan)
    cpus = machine.num_cpus // need["CPU"]
    gpus = machine.num_gpus // need["GPU"] if need.get("GPU") else cpus
    return max(1, int(min(cpus, gpus)))


_SECTIONS = frozenset(field.name for field in fields(Experiment)) - {"sweep"}
_PINNED = ("code", "data", "env", "name", "where", "why")
"""Sections that all trials of a sweep share: they are pinned once, before the first trial."""


def path_of(name: str) -> str:
    """Return the setting that a name in the space stands for: `lr` is `params.lr`, `tasks.train.gpus` is unchanged."""
    parts = split_path(name)
    is_path = len(parts) > 1 and parts[0] in _SECTIONS
    return join_path(parts if is_path else ("params", *parts))


def check_name(name: str) -> str:
    """Check that a name stands for a setting that can vary.

    Raises:
        UsageError: it is not a path, or it is pinned for the whole sweep.
    """
    try:
        path = path_of(name)
    except ValueError as error:
        raise UsageError(f"`{name}` is not a setting: {error}", hint="such as `lr` or `tasks.train.gpus`") from error
    section = split_path(path)[0]
    if section in _PINNED:
        raise UsageError(
            f"`{name}` cannot vary: `{section}` is the same for all trials of a sweep",
            hint="vary parameters, resources or limits: `lr`, `tasks.train.gpus`, `limit.time`",
            code="invalid-space",
        )
    return path


def overrides_of(config: Mapping[str, object]) -> tuple[str, ...]:
    """Return the overrides for a trial with this configuration, in the order of the space."""
    return tuple(f"{path_of(join_path(parts))}={_text(value)}" for parts, value in _leaves(config, ()))


def _leaves(config: Mapping[str, object], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in config.items():
        parts = (*above, *split_path(name)) if not above else (*above, name)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, parts)
        else:
            yield parts, value


def _text(value: object) -> str:
    """Format a value as an override; exact for every JSON value, including NaN and infinities."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else (".inf" if value > 0 else "-.inf")
    return json.dumps(value, ensure_ascii=False, default=_number)


def _number(value: object) -> object:
    """Convert NumPy numbers to plain numbers."""
    item = getattr(value, "item", None)
    if callable(item):
        return item()
    raise UsageError(
        f"{value!r} in the configuration of a trial is not a JSON value",
        hint="use numbers, text, true, false, null, lists and mappings",
        code="not-serialisable",
    )
