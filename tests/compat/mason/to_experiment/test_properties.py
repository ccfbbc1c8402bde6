"""Whatever mason takes becomes an experiment elsewhere, or is refused with a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compat.mason.test_table import cases, launch_of
from windlass.compat.mason.account import KnownAccount
from windlass.compat.mason.reading import read_command_line
from windlass.compat.mason.to_experiment.experiment import to_experiment
from windlass.compat.to_experiment.destination import Destination
from windlass.config.emit import to_yaml
from windlass.config.loading import load_config
from windlass.core.errors import SpecError, WindlassError
from windlass.spec import Experiment

PLACES = (
    Destination(),
    Destination(name="docker", kind="docker"),
    Destination(name="lab", kind="slurm", gpus={"": 4}, paths={"/weka": "/scratch"}),
    Destination(name="mine", kind="beaker", gpus={"ai2/jupiter": 8}, present=("/weka/oe-adapt-default",)),
)
CODES = {"mason-path", "does-not-fit", "mason-usage"}
WORDS = (
    *("python", "t.py", "open_instruct/finetune.py", "accelerate", "launch", "torchrun", "--num_processes", "8", "--nnodes"),
    *("--machine_rank=0", "source", "configs/ray_node_setup.sh", "&&", "||", ";", "|", "A=1", "$X", "${rank}", "'a b'"),
    *('{"a": 1}', "/weka/x", "/output/y", "--output_dir", "--standalone", "</a>", "`id`", "--dataset_local_cache_dir"),
)  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.kind)
def test_every_command_line_of_the_table_has_a_meaning_elsewhere(place: Destination) -> None:
    accepted = [case for name in ("commands", "environment", "options") for case in cases(name)]
    refused: set[str] = set()
    assert len(accepted) > 40
    for case in accepted:
        try:
            experiment = to_experiment(launch_of(case), place).experiment
        except SpecError as error:
            refused |= {problem.code for problem in error.problems}
            continue
        text = to_yaml(experiment)
        assert load_config(Experiment, text, source="x").value == experiment, case["name"]
    assert refused <= CODES


@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=9),
    st.sampled_from(PLACES),
    st.sampled_from(("", "--num_nodes 2 --gpus 8", "--gpus 1")),
)
def test_any_command_becomes_an_experiment_or_is_refused(words: list[str], place: Destination, shape: str) -> None:
    line = ["--cluster", "ai2/jupiter", *shape.split(), "--", *words]
    account = KnownAccount(name="jo", secret_names=())
    try:
        experiment = to_experiment(read_command_line(line, environ={}, account=account), place).experiment
    except WindlassError as error:
        unexplained = [problem for problem in error.problems if not (problem.hint and problem.code)]
    else:
        unexplained = []
        assert load_config(Experiment, to_yaml(experiment), source="x").value == experiment
    assert unexplained == []
