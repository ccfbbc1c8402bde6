"""with_resources and with_parameters: what a worker gets, and that big objects travel once, as a file."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windlass import tune
from windlass.core.errors import NotFoundError, UsageError
from windlass.tune.trainable import wrapping as wrapping_module
from windlass.tune.trainable.shape import read_shape, resources_of
from windlass.tune.trainable.wrapping import unwrap
from windlass.tune.trial import ONE_CPU, Resources


def train(config: dict[str, Any], data: Any = None, scale: float = 1.0) -> float:
    """A trainable that has parameters."""
    return float(config["x"] * data.sum() * scale)


class Trainer(tune.Trainable):
    """A class trainable that has parameters."""

    def setup(self, config: dict[str, Any], data: Any = None) -> None:
        self.data = data


def test_a_function_gets_its_parameters_by_name() -> None:
    wrapped = tune.with_parameters(tune.with_parameters(train, data=np.ones(3)), scale=2.0)
    trainable, shape = unwrap(wrapped)
    assert (trainable({"x": 2}), wrapped({"x": 2}), shape) == (12.0, 12.0, None)
    assert [vars(made)["__name__"] for made in (wrapped, trainable)] == ["train", "train"]


def test_a_class_gets_its_parameters_in_setup() -> None:
    trainable, _ = unwrap(tune.with_parameters(Trainer, data=[1, 2]))
    assert isinstance(trainable, type)
    assert issubclass(trainable, Trainer)
    made = trainable.__new__(trainable)
    made.setup({})
    assert made.data == [1, 2]


def test_what_travels_to_a_worker_is_small_and_its_pages_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    big = np.arange(1_000_000.0)
    trainable, _ = unwrap(tune.with_parameters(train, data=big, scale=0.5))
    sent = pickle.dumps(trainable)
    assert len(sent) < 500
    monkeypatch.setattr(wrapping_module, "_loaded", {})
    received = pickle.loads(sent)
    assert received({"x": 1}) == big.sum() * 0.5
    first = received.parameters.values()["data"]
    assert pickle.loads(sent).parameters.values()["data"] is first, "a process loads the file once"
    assert not first.flags.owndata, "the array lies in the mapped file"
    first[0] = 7.0
    assert big[0] == 0.0, "a worker changes its own copy"


def test_the_file_goes_with_the_head_and_a_later_worker_says_so() -> None:
    code = (
        "import pickle, sys; from windlass import tune; from tests.tune.trainable.test_wrapping import train\n"
        "from windlass.tune.trainable.wrapping import unwrap\n"
        "sys.stdout.buffer.write(pickle.dumps(unwrap(tune.with_parameters(train, data=[1]))[0]))"
    )
    root = Path(__file__).parents[3]
    sent = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=True).stdout
    received = pickle.loads(sent)
    with pytest.raises(NotFoundError) as caught:
        received({"x": 1})
    assert caught.value.code == "invalid-call"
    assert not os.path.exists(os.path.dirname(caught.value.message.rpartition(" ")[2]))


def test_what_cannot_be_pickled_is_refused_by_name(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        wrapped, _ = unwrap(tune.with_parameters(train, data=file))
        with pytest.raises(UsageError, match="the parameters data cannot be sent to workers"):
            pickle.dumps(wrapped)


def test_resources_in_all_their_forms() -> None:
    assert read_shape(None) is ONE_CPU
    assert read_shape({"cpu": 2, "gpu": 0.5, "memory": 0}).total == {"CPU": 2.0, "GPU": 0.5}
    assert read_shape({"cpu": 1, "custom_resources": {"tpu": 1}}).bundles == ({"CPU": 1.0, "tpu": 1.0},)
    bundles = tune.PlacementGroupFactory([{}, {"CPU": 1}, {"gpu": 2}], strategy="SPREAD")
    assert read_shape(bundles) == Resources(bundles=({}, {"CPU": 1.0}, {"GPU": 2.0}), strategy="SPREAD")
    assert bundles.head_bundle_is_empty
    assert bundles.required_resources == {"CPU": 1.0, "GPU": 2.0}
    assert bundles == tune.PlacementGroupFactory([{}, {"CPU": 1}, {"gpu": 2}], strategy="SPREAD")


def test_a_trials_shape_may_depend_on_its_configuration() -> None:
    _, shape = unwrap(tune.with_resources(train, lambda config: {"cpu": config["threads"]}))
    assert resources_of(train, shape, {"threads": 3}).total == {"CPU": 3.0}
    assert resources_of(train, None, {}) is ONE_CPU

    class Wide(Trainer):
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> Any:
            return tune.PlacementGroupFactory([{"CPU": 1}] * config["workers"])

    assert resources_of(Wide, None, {"workers": 2}).total == {"CPU": 2.0}
    assert resources_of(Wide, {"cpu": 4}, {"workers": 2}).total == {"CPU": 4.0}


@pytest.mark.parametrize("shape", [{"cpu": -1}, {"cpu": "two"}, {"cpu": float("inf")}, 3, {"gpu": True}])
def test_a_shape_that_is_none_is_refused(shape: Any) -> None:
    with pytest.raises(UsageError):
        tune.with_resources(train, shape)


@pytest.mark.parametrize("wrap", [tune.with_parameters, lambda thing: tune.with_resources(thing, {"cpu": 1})])
def test_only_trainables_are_wrapped(wrap: Any) -> None:
    with pytest.raises(UsageError, match="cannot wrap a int: 3"):
        wrap(3)


def test_a_function_of_resources_that_fails_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        resources_of(train, lambda config: {"cpu": config["nope"]}, {"x": 1})
    assert caught.value.code == "user-code-failed"
    assert "<lambda> (test_wrapping.py:" in str(caught.value)
    assert "KeyError: 'nope'" in str(caught.value)
    assert "'x'" in caught.value.hint
