"""What all trials of a sweep are made from: a plan with its pins, made once; each trial is that plan with overrides.

So the trials run the same code, environment and data although the user's files go on changing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from windlass import config
from windlass.core.errors import PreconditionError
from windlass.core.files import write_json
from windlass.core.json_text import read_json
from windlass.core.names import new_token
from windlass.launch import Options, Prepared
from windlass.plan import Plan, make_plan
from windlass.runs.home import Home
from windlass.spec import Experiment

__all__ = ["BLUEPRINT", "TrialTemplate", "ensure_blueprint", "read_trial_template"]

BLUEPRINT = "experiment.json"
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTemplate:
    """The plan that trials share.

    Attributes:
        sweep: the sweep's name; runs carry it as their group where the experiment names none.
        token: 128 random bits; ids of runs are made from it, so that a run is found again and never doubled.
        base: folder that relative paths of the experiment are relative to.
    """

    sweep: str
    token: str
    plan: Plan
    base: Path

    @classmethod
    def of(cls, prepared: Prepared, sweep: str) -> TrialTemplate:
        """From an experiment that was planned; its `sweep:` is left out."""
        experiment = replace(prepared.experiment, sweep=None)
        plan = replace(prepared.plan, experiment=config.to_data(experiment))  # type: ignore[arg-type]  # JSON values
        return cls(sweep=sweep, token=new_token(), plan=plan, base=prepared.base)

    def write(self, folder: Path) -> Path:
        """Keep it in a sweep's folder; returns the file."""
        path = folder / BLUEPRINT
        data = {"sweep": self.sweep, "token": self.token, "base": str(self.base), "plan": self.plan.to_data()}
        write_json(path, data)
        return path

    def run_id(self, trial: str, attempt: int) -> str:
        """The id of an attempt's run: always the same one."""
        text = "\0".join((self.token, trial, str(attempt)))
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return f"{self.plan.name}-" + "".join(_LETTERS[byte % 32] for byte in digest)

    def prepared(self, overrides: tuple[str, ...], home: Home, *, trial: str = "") -> Prepared:
        """The plan of one trial, ready to launch. Pure but for what planning reads of the place.

        Raises:
            SpecError: an override is refused, or the place cannot do what the trial asks for.
        """
        given = self._overrides(overrides)
        old = self.plan
        text = config.to_yaml(config.from_data(Experiment, dict(old.experiment), source=f"sweep {self.sweep}"))
        loaded = config.load(Experiment, text, source=f"the experiment of sweep {self.sweep}", overrides=given)
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


def ensure_blueprint(folder: Path, prepared: Prepared | None, sweep: str) -> TrialTemplate:
    """The blueprint in a sweep's folder, made of an experiment where there is none yet; idempotent.

    Raises:
        PreconditionError: there is none, and no experiment to make it of.
    """
    if prepared is not None and not (folder / BLUEPRINT).exists():
        TrialTemplate.of(prepared, sweep).write(folder)
    return read_trial_template(folder)


def read_trial_template(folder: Path) -> TrialTemplate:
    """Read back what `write` wrote.

    Raises:
        PreconditionError: it is not there, or damaged.
    """
    path = folder / BLUEPRINT
    try:
        data = read_json(path)
        assert isinstance(data, dict)
        plan = Plan.from_data(data["plan"])
        return TrialTemplate(sweep=data["sweep"], token=data["token"], plan=plan, base=Path(data["base"]))
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise PreconditionError(
            f"{path} does not say what the trials run: {error}",
            hint="windlass sweep launch FILE starts a new sweep",
            code="sweep-damaged",
        ) from error
