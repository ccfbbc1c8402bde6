"""lm-evaluation-harness over our decoder: its answers against arithmetic done by hand, and whole tasks."""

from __future__ import annotations

import itertools
import json
import math
import os
import types
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ["HF_DATASETS_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"

from tests.train.evaluate.together import together
from windlass.core.errors import SpecError
from windlass.train.data.tokenizer import ByteTokenizer
from windlass.train.evaluate import downstream
from windlass.train.evaluate.downstream import Downstream, run_tasks, task_manager
from windlass.train.evaluate.harness import HarnessModel, Interrupted
from windlass.train.generation.generate import generate
from windlass.train.model.config import AttentionConfig, ModelConfig
from windlass.train.model.decoder import Decoder
from windlass.train.model.init import init_weights

CONFIG = ModelConfig(
    d_model=16, num_layers=1, vocab_size=258, hidden=32, max_length=24, attention=AttentionConfig(num_heads=2)
)
TEXT = ByteTokenizer()


def model() -> Decoder:
    made = Decoder(CONFIG)
    init_weights(made, 0)
    with torch.no_grad():
        made.get_parameter("head.weight").mul_(20)  # so that answers differ
    made.eval()
    return made


def request(*args: Any) -> Any:
    return types.SimpleNamespace(args=args)


def by_hand(net: Decoder, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """One request, no batch, no tricks."""
    tokens = (context + continuation)[-(CONFIG.max_length + 1) :]
    asked = min(len(continuation), len(tokens) - 1)
    with torch.no_grad():
        shares = net(torch.tensor([tokens[:-1]]))[0].log_softmax(-1)
    picked = [float(shares[place - 1, tokens[place]]) for place in range(len(tokens) - asked, len(tokens))]
    best = [int(shares[place - 1].argmax()) == tokens[place] for place in range(len(tokens) - asked, len(tokens))]
    return sum(picked), all(best)


PAIRS = [("a", "b"), ("the cat", " sat"), ("", "hello"), ("x " * 30, "tail"), ("long", "y" * 40), ("q", "\n")]


@pytest.mark.parametrize("batch_tokens", [1, 60, 100_000])
def test_loglikelihood(batch_tokens: int) -> None:
    net = model()
    found = HarnessModel(net, TEXT, batch_tokens=batch_tokens).loglikelihood([request(*pair) for pair in PAIRS])
    for (context, continuation), (value, is_greedy) in zip(PAIRS, found, strict=True):
        stripped = context.rstrip()
        tail = context[len(stripped) :] + continuation
        want = by_hand(net, list(stripped.encode()) or [256], list(tail.encode()))
        assert value == pytest.approx(want[0], rel=1e-5)
        assert is_greedy == want[1]


def test_the_likeliest_continuation_is_greedy() -> None:
    net = model()
    [best] = generate(net, [list(b"go")], max_new_tokens=1)
    scored = HarnessModel(net, TEXT)._loglikelihood_tokens([(None, list(b"go"), [token]) for token in range(258)])
    assert [token for token, (_, is_greedy) in enumerate(scored) if is_greedy] == best
    assert sum(math.exp(value) for value, _ in scored) == pytest.approx(1.0, rel=1e-5)


def test_whole_texts_count_each_token_once() -> None:
    net = model()
    text = "a text that is longer than the model can see at once"
    [found] = HarnessModel(net, TEXT).loglikelihood_rolling([request(text)])
    tokens, length = list(text.encode()), CONFIG.max_length
    want = by_hand(net, [256], tokens[:length])[0]
    for start in range(length, len(tokens), length):
        stop = min(start + length, len(tokens))
        want += by_hand(net, tokens[stop - length - 1 : start], tokens[start:stop])[0]
    assert found == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(("world", "replicas"), [(2, 1), (3, 1), (2, 2)])
def test_any_number_of_processes_finds_the_same(world: int, replicas: int) -> None:
    requests = [request(*pair) for pair in PAIRS]
    alone = HarnessModel(model(), TEXT, batch_tokens=60).loglikelihood(requests, disable_tqdm=True)

    def run(place: Any) -> Any:
        return HarnessModel(model(), TEXT, world=place, batch_tokens=60).loglikelihood(requests, disable_tqdm=True)

    assert together(run, world=world, replicas=replicas) == [alone] * (world * replicas)


def test_generation_ends_at_the_first_stop() -> None:
    net = model()
    [tokens] = generate(net, [list(b"ab")], max_new_tokens=8, eos=256)
    whole = TEXT.decode(tokens)
    settings = {"until": [], "max_gen_toks": 8}
    adapter = HarnessModel(net, TEXT)
    assert adapter.generate_until([request("ab", settings)]) == [whole]
    stop = whole[2]
    [cut] = adapter.generate_until([request("ab", {**settings, "until": ["never there", stop]})])
    assert cut == whole.split(stop)[0]


def test_a_stop_is_obeyed_before_the_next_batch() -> None:
    answers = iter([False, True])
    adapter = HarnessModel(model(), TEXT, batch_tokens=1, should_stop=lambda: next(answers))
    with pytest.raises(Interrupted):
        adapter.loglikelihood([request(*pair) for pair in PAIRS])


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A task of four questions, whose answers are those that the model gives to the first three."""
    net = model()
    adapter = HarnessModel(net, TEXT)
    rows = []
    for number, (question, choices) in enumerate(
        [("ab", ["cd", "xy"]), ("one", ["two", "ten"]), ("go", ["on", "up"]), ("hey", ["you", "all"])]
    ):
        scores = [adapter.loglikelihood([request(question, f" {choice}")])[0][0] for choice in choices]
        best = scores.index(max(scores))
        rows.append({"question": question, "choices": choices, "answer": best if number < 3 else 1 - best})
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "task.yaml").write_text(
        f"""
task: windlass_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path / "data.jsonl"}}}, cache_dir: {tmp_path / "cache"}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
    )
    return tmp_path


@pytest.mark.system
def test_a_whole_task(tasks: Path) -> None:
    net = model()
    before = torch.get_rng_state()
    found = run_tasks(net, TEXT, ["windlass_choice"], include=str(tasks))
    assert found == {"eval/windlass_choice/acc": 0.75}
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.system
def test_a_limit_and_a_stop(tasks: Path) -> None:
    manager = task_manager(["windlass_choice"], str(tasks))
    found = run_tasks(model(), TEXT, ["windlass_choice"], limit=3, manager=manager)
    assert found == {"eval/windlass_choice/acc": 1.0}
    assert run_tasks(model(), TEXT, ["windlass_choice"], manager=manager, should_stop=lambda: True) is None


def test_an_unknown_task_is_refused_before_training(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = list(itertools.islice(downstream._managers(str(tasks)), 1))  # not the thousands that it comes with
    monkeypatch.setattr(downstream, "_managers", lambda include: every)
    with pytest.raises(SpecError) as raised:
        Downstream(["windlass_choise"], TEXT, include=str(tasks)).on_attach()
    assert raised.value.code == "unknown-name"
    assert raised.value.hint == "did you mean `windlass_choice`?"
    with pytest.raises(SpecError, match="no folder /nowhere"):
        Downstream(["arc_easy"], TEXT, include="/nowhere").on_attach()
