"""Trackers: W&B and Comet against stand-ins that take what the real clients take, TensorBoard and traces for real."""

from __future__ import annotations

import gzip
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.train.callbacks.conftest import Make
from tests.train.tiny import MemoryStore
from windlass.core.errors import PreconditionError
from windlass.train.callbacks.profiler import Profiler
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.callbacks.trackers.comet import Comet
from windlass.train.callbacks.trackers.tensorboard import TensorBoard
from windlass.train.callbacks.trackers.wandb import Wandb
from windlass.train.checkpoint.config import CheckpointerConfig
from windlass.train.duration import Duration

CONFIG = {"recipe": {"name": "first"}, "overrides": []}
EVERY_2 = CheckpointerConfig(every=Duration.steps(2), is_async=False)


class FakeRun:
    def __init__(self, number: str) -> None:
        self.id = number
        self.path = f"team/project/{number}"
        self.logged: list[tuple[int | None, dict[str, Any]]] = []
        self.exit_code: int | None = None

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        self.logged.append((step, data))

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        self.exit_code = exit_code


class FakeWandb(ModuleType):
    """`init`, `Api().run(path).tags`, as wandb 0.2x has them: docs.wandb.ai/ref/python."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[FakeRun] = []
        self.inits: list[dict[str, Any]] = []
        self.tags: list[str] = []
        self.asked = threading.Event()
        self.is_down = False

    def init(
        self,
        entity: str | None = None,
        project: str | None = None,
        dir: str | None = None,  # noqa: A002 - theirs
        id: str | None = None,  # noqa: A002 - theirs
        name: str | None = None,
        notes: str | None = None,
        tags: Sequence[str] | None = None,
        config: dict[str, Any] | str | None = None,
        resume: bool | str | None = None,
    ) -> FakeRun:
        self.inits.append(
            {"entity": entity, "project": project, "id": id, "name": name, "tags": tags, "resume": resume}
        )
        run = FakeRun(id or "fresh")
        self.runs.append(run)
        return run

    def Api(self) -> FakeWandb:  # noqa: N802 - theirs
        return self

    def run(self, path: str = "") -> FakeWandb:
        assert path == "team/project/fresh"
        self.asked.set()
        if self.is_down:
            raise OSError("no route")
        return self


class FakeExperiment:
    def __init__(self, key: str) -> None:
        self.key = key
        self.name = ""
        self.parameters: dict[str, Any] = {}
        self.logged: list[tuple[int | None, dict[str, float]]] = []
        self.is_over = False

    def get_key(self) -> str:
        return self.key

    def set_name(self, name: str) -> None:
        self.name = name

    def log_parameters(self, parameters: dict[str, Any], prefix: str | None = None, step: int | None = None) -> None:
        self.parameters = parameters

    def log_metrics(
        self, dic: Mapping[str, float], prefix: str | None = None, step: int | None = None, epoch: int | None = None
    ) -> None:
        self.logged.append((step, dict(dic)))

    def end(self) -> None:
        self.is_over = True


class FakeComet(ModuleType):
    """`start`, as comet_ml has it: comet.com/docs/v2/api-and-sdk/python-sdk/reference/start."""

    def __init__(self) -> None:
        super().__init__("comet_ml")
        self.experiments: list[FakeExperiment] = []
        self.starts: list[tuple[str | None, str | None, str | None, str | None]] = []

    def start(
        self,
        api_key: str | None = None,
        workspace: str | None = None,
        project: str | None = None,
        project_name: str | None = None,
        experiment_key: str | None = None,
        mode: str | None = None,
        online: bool | None = None,
        source: str | None = None,
        experiment_config: Any = None,
    ) -> FakeExperiment:
        self.starts.append((workspace, project_name, experiment_key, mode))
        self.experiments.append(FakeExperiment(experiment_key or "k" * 32))
        return self.experiments[-1]


def install(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    from importlib.machinery import ModuleSpec

    module.__spec__ = ModuleSpec(module.__name__, None)
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    install(monkeypatch, fake)
    return fake


@pytest.fixture
def comet(monkeypatch: pytest.MonkeyPatch) -> FakeComet:
    fake = FakeComet()
    install(monkeypatch, fake)
    return fake


def test_wandb_logs_each_step_and_goes_on_in_the_same_run(make: Make, wandb: FakeWandb, store: MemoryStore) -> None:
    def fit(steps: int) -> None:
        tracker = Wandb(project="p", entity="e", tags=("a",), cancel_tags=())
        make({"wandb": tracker}, steps=steps, store=store, checkpoint=EVERY_2, config=CONFIG).fit()

    fit(3)
    fit(5)
    first = {"entity": "e", "project": "p", "id": None, "name": "first", "tags": ["a"], "resume": "allow"}
    assert wandb.inits == [first, {**first, "id": "fresh"}]
    assert [[step for step, _ in run.logged] for run in wandb.runs] == [[1, 2, 3], [4, 5]]
    assert "train/loss" in wandb.runs[0].logged[0][1]
    assert [run.exit_code for run in wandb.runs] == [0, 0]


def test_wandb_knows_that_a_run_failed(make: Make, wandb: FakeWandb) -> None:
    class Crash(TrainerCallback):
        def on_step_end(self) -> None:
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError):
        make({"wandb": Wandb(cancel_tags=()), "crash": Crash()}).fit()
    assert wandb.runs[0].exit_code == 1


def test_a_tag_stops_the_run(make: Make, wandb: FakeWandb) -> None:
    tracker = Wandb(cancel_tags=("cancel",), poll_s=0.0)

    class Wait(TrainerCallback):
        def on_step_end(self) -> None:
            if self.trainer.step == 2:
                wandb.tags.append("cancel")
                assert tracker._watcher is not None
                tracker._watcher.join(timeout=120)

    trainer = make({"wandb": tracker, "wait": Wait()}, steps=10)
    assert trainer.fit().end == "stopped"
    assert trainer.step == 2
    assert tracker._watcher is not None
    assert not tracker._watcher.is_alive()


def test_a_server_that_is_away_stops_nothing_and_is_told_once(
    make: Make, wandb: FakeWandb, capsys: pytest.CaptureFixture[str]
) -> None:
    wandb.is_down = True
    tracker = Wandb(cancel_tags=("cancel",), poll_s=0.0)

    class Wait(TrainerCallback):
        def on_step_end(self) -> None:
            for _ in range(2):
                wandb.asked.clear()
                assert wandb.asked.wait(timeout=120)

    assert make({"wandb": tracker, "wait": Wait()}, steps=2).fit().is_finished
    assert tracker._watcher is not None
    tracker._watcher.join(timeout=120)
    assert capsys.readouterr().err == "windlass: cannot check W&B for a cancel tag (no route); will retry\n"


def test_comet_logs_each_step_and_goes_on_in_the_same_experiment(
    make: Make, comet: FakeComet, store: MemoryStore
) -> None:
    for steps in (3, 5):
        tracker = Comet(project="p", workspace="w")
        make({"comet": tracker}, steps=steps, store=store, checkpoint=EVERY_2, config=CONFIG).fit()
    assert comet.starts == [("w", "p", None, "get_or_create"), ("w", "p", "k" * 32, "get_or_create")]
    assert [[step for step, _ in each.logged] for each in comet.experiments] == [[1, 2, 3], [4, 5]]
    assert [each.name for each in comet.experiments] == ["first", ""]
    assert comet.experiments[0].parameters == CONFIG
    assert all(each.is_over for each in comet.experiments)


@pytest.mark.parametrize(("tracker", "package"), [(Wandb(), "wandb"), (Comet(), "comet-ml")])
def test_a_tracker_that_is_not_installed_is_refused_before_the_first_step(
    make: Make, tracker: TrainerCallback, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.core.extras.find_spec", lambda name: None)
    trainer = make({"it": tracker})
    with pytest.raises(PreconditionError) as caught:
        trainer.fit()
    assert caught.value.hint == f"pip install {package}"
    assert trainer.step == 0


def test_tensorboard_has_each_step_once_after_a_restart(make: Make, tmp_path: Path, store: MemoryStore) -> None:
    for steps in (3, 5):
        tracker = TensorBoard(folder=str(tmp_path))
        make({"tensorboard": tracker}, steps=steps, store=store, checkpoint=EVERY_2).fit()
    files = sorted(tmp_path.glob("events.out.tfevents.*"))
    assert len(files) == 2
    written = [[event.step for event in events(file) if event.summary.value] for file in files]
    assert [sorted(set(steps)) for steps in written] == [[1, 2, 3], [4, 5]]
    tags = {value.tag for file in files for event in events(file) for value in event.summary.value}
    assert "train/loss" in tags
    restarts = [event.step for file in files for event in events(file) if event.HasField("session_log")]
    assert restarts[-1] == 4


def events(path: Path) -> list[Any]:
    """Records of a file: length, its checksum, an event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    data, found = path.read_bytes(), []
    while data:
        length = int.from_bytes(data[:8], "little")
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def test_a_trace_that_perfetto_opens(make: Make, tmp_path: Path) -> None:
    profiler = Profiler(start=2, steps=2, folder=str(tmp_path), has_memory=True)
    make({"profiler": profiler}, steps=6).fit()
    assert profiler.path == tmp_path / "step-3-rank-0.json.gz"
    assert list(tmp_path.iterdir()) == [profiler.path]
    with gzip.open(profiler.path, "rt") as file:
        trace = json.load(file)
    names = {str(event.get("name")) for event in trace["traceEvents"]}
    assert "aten::addmm" in names
    assert all("ph" in event for event in trace["traceEvents"])
    steps = [name for name in names if name.startswith("Optimizer.step")]
    assert steps


def test_a_trace_that_training_cuts_short_is_written(make: Make, tmp_path: Path) -> None:
    profiler = Profiler(start=0, steps=100, folder=str(tmp_path))
    make({"profiler": profiler}, steps=2).fit()
    assert profiler.path is not None
    with gzip.open(profiler.path, "rt") as file:
        assert json.load(file)["traceEvents"]


def test_other_ranks_write_no_trace(make: Make, tmp_path: Path) -> None:
    make({"profiler": Profiler(start=0, steps=1, ranks=(1,), folder=str(tmp_path))}, steps=2).fit()
    assert not list(tmp_path.iterdir())
