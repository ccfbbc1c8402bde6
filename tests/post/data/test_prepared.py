"""Prepared data: found by content, built once, published whole, and every dropped row counted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from windlass.core.errors import SpecError
from windlass.post.data import prepared
from windlass.post.data.chat import ChatEncoder, special_tokens
from windlass.post.data.config import MixSource, MixtureConfig, from_mixer_list
from windlass.post.data.prepared import MANIFEST, PreparedData, prepare
from windlass.post.data.templates import TEMPLATES, ChatTemplate
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.tokenizer import ByteTokenizer
from windlass.train.errors import TrainingError


def encoder(template: str = "plain") -> ChatEncoder:
    tokenizer = ByteTokenizer()
    compiled = ChatTemplate.compile(TEMPLATES[template], name=template, tokens=special_tokens(tokenizer))
    return ChatEncoder(compiled, tokenizer, TokenizerConfig(path="bytes"))


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sums(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"{number}+1=", "completion": str(number + 1)} for number in range(count)]


def config_of(*sources: MixSource | Path, max_length: int = 64) -> MixtureConfig:
    mix = tuple(each if isinstance(each, MixSource) else MixSource(source=str(each)) for each in sources)
    return MixtureConfig(mix=mix, max_length=max_length, microbatch_tokens=256)


def texts(data: PreparedData) -> list[str]:
    found = []
    for row in range(data.num_rows):
        for number in data.sequences_of(row):
            ids, _ = data.sequence(number)
            found.append(bytes(ids[ids < 256].tolist()).decode())
    return found


def test_a_mixture_becomes_tokens_with_statistics(tmp_path: Path) -> None:
    data = prepare(config_of(write(tmp_path / "a.jsonl", sums(5))), "chat", encoder(), tmp_path / "cache")
    assert texts(data) == ["0+1=1", "1+1=2", "2+1=3", "3+1=4", "4+1=5"]
    (facts,) = data.statistics
    assert facts["num_rows"] == facts["num_kept"] == 5
    assert (facts["num_tokens"], facts["num_learned"], facts["longest"]) == (30, 10, 6)


def test_the_second_time_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "a.jsonl", sums(3))
    first = prepare(config_of(source), "chat", encoder(), tmp_path / "cache")
    monkeypatch.setattr(prepared, "_write", None)
    moved = tmp_path / "elsewhere.jsonl"
    shutil.copyfile(source, moved)  # another path and time, the same content
    assert prepare(config_of(moved), "chat", encoder(), tmp_path / "cache").folder == first.folder


def test_everything_that_determines_the_tokens_changes_the_key(tmp_path: Path) -> None:
    source, cache = write(tmp_path / "a.jsonl", sums(4)), tmp_path / "cache"
    base = config_of(source, max_length=200)
    keys = [prepare(base, "chat", encoder(), cache).key]
    keys.append(prepare(base, "chat", encoder("chatml"), cache).key)
    keys.append(prepare(replace(base, max_length=32), "chat", encoder(), cache).key)
    keys += [
        prepare(replace(base, mix=(MixSource(source=str(source), count=2, seed=seed),)), "chat", encoder(), cache).key
        for seed in (0, 1)
    ]
    keys.append(prepare(replace(base, transforms=("single-turn",)), "chat", encoder(), cache).key)
    write(source, [*sums(3), {"prompt": "3+1=", "completion": "5"}])  # same size, one digit
    keys.append(prepare(base, "chat", encoder(), cache).key)
    assert len(set(keys)) == len(keys)


def test_settings_of_batches_do_not_change_the_key(tmp_path: Path) -> None:
    source, cache = write(tmp_path / "a.jsonl", sums(4)), tmp_path / "cache"
    base = config_of(source)
    other = replace(base, batch_rows=1, microbatch_tokens=512, is_shuffled=False, seed=7)
    assert prepare(base, "chat", encoder(), cache).key == prepare(other, "chat", encoder(), cache).key


def test_fractions_counts_and_repetitions(tmp_path: Path) -> None:
    source, cache = write(tmp_path / "a.jsonl", sums(10)), tmp_path / "cache"
    wanted = {0.5: 5, 1.0: 10, 2.5: 25, 0.04: 0}
    for fraction, count in wanted.items():
        config = config_of(MixSource(source=str(source), fraction=fraction))
        if not count:
            with pytest.raises(SpecError, match="no row of the mixture is left"):
                prepare(config, "chat", encoder(), cache)
            continue
        found = texts(prepare(config, "chat", encoder(), cache))
        assert len(found) == count
        assert max(found.count(text) for text in found) - min(found.count(text) for text in set(found)) <= 1
    picks = {
        tuple(texts(prepare(config_of(MixSource(source=str(source), count=3, seed=seed)), "chat", encoder(), cache)))
        for seed in range(4)
    }
    assert len(picks) > 1


def test_the_mixer_list_of_open_instruct() -> None:
    assert from_mixer_list(["a.jsonl", "1.0", "org/b", "1", "c.jsonl", "0.5"], splits=["train", "test", "train"]) == (
        MixSource(source="a.jsonl", fraction=1.0),
        MixSource(source="hf:org/b", count=1, split="test"),
        MixSource(source="c.jsonl", fraction=0.5),
    )
    for words, why in (
        (["a.jsonl"], "no amount"),
        (["a.jsonl", "all"], "invalid amount 'all'"),
        (["a.jsonl", "0"], "'0'"),
    ):
        with pytest.raises(SpecError, match=why):
            from_mixer_list(words)


def test_dropped_rows_are_counted_with_reasons(tmp_path: Path) -> None:
    rows: list[Mapping[str, object]] = [
        *sums(2),
        {"prompt": "x" * 100, "completion": "1"},
        {"messages": [{"role": "user", "content": "a"}] * 2},
    ]
    source = write(tmp_path / "a.jsonl", rows[:3])
    data = prepare(config_of(source), "chat", encoder(), tmp_path / "cache")
    assert data.statistics[0]["dropped"] == {"longer than 64 tokens": 1}
    with pytest.raises(SpecError, match=r"a\.jsonl:4: no message to learn"):
        prepare(config_of(write(source, rows)), "chat", encoder(), tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.partial"))


def test_long_sequences_are_cut_if_asked(tmp_path: Path) -> None:
    rows = [{"prompt": "x" * 60, "completion": "1234567890"}, {"prompt": "x" * 80, "completion": "1"}]
    config = replace(config_of(write(tmp_path / "a.jsonl", rows)), long_sequences="truncate")
    data = prepare(config, "chat", encoder(), tmp_path / "cache")
    assert texts(data) == ["x" * 60 + "1234"]
    assert data.statistics[0]["num_truncated"] == 1
    assert data.statistics[0]["dropped"] == {"no answer within 64 tokens": 1}


def test_pairs_stay_together(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+0=", "chosen": str(n), "rejected": str(n + 1)} for n in range(3)]
    rows.append({"prompt": "9+0=", "chosen": "9", "rejected": "x" * 100})
    data = prepare(config_of(write(tmp_path / "a.jsonl", rows)), "pair", encoder(), tmp_path / "cache")
    assert texts(data) == ["0+0=0", "0+0=1", "1+0=1", "1+0=2", "2+0=2", "2+0=3"]
    assert [list(data.sequences_of(row)) for row in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert data.statistics[0]["dropped"] == {"longer than 64 tokens": 1}


def test_a_half_written_folder_is_built_again(tmp_path: Path) -> None:
    source, cache = write(tmp_path / "a.jsonl", sums(3)), tmp_path / "cache"
    first = prepare(config_of(source), "chat", encoder(), cache)
    (first.folder / MANIFEST).unlink()
    (first.folder / "tokens.npy").write_bytes(b"half")
    (cache / f"{first.key}.0011.partial").mkdir()
    again = prepare(config_of(source), "chat", encoder(), cache)
    assert texts(again) == ["0+1=1", "1+1=2", "2+1=3"]
    assert not list(cache.glob("*.partial"))


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    source, cache = write(tmp_path / "a.jsonl", sums(3)), tmp_path / "cache"
    folder = prepare(config_of(source), "chat", encoder(), cache).folder
    with open(folder / "tokens.npy", "ab") as file:
        file.write(b"x")
    with pytest.raises(TrainingError, match=r"tokens\.npy has another size") as caught:
        prepare(config_of(source), "chat", encoder(), cache)
    assert caught.value.code == "tokens-broken"


def test_two_builders_at_once_build_once(tmp_path: Path) -> None:
    source, cache = write(tmp_path / "a.jsonl", sums(200)), tmp_path / "cache"
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: prepare(config_of(source), "chat", encoder(), cache), range(4)))
    assert len({data.folder for data in found}) == 1
    assert all(np.array_equal(data.tokens_N, found[0].tokens_N) for data in found)


def test_parquet_gives_the_same_tokens(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": str(n)}]} for n in range(9)
    ]
    lines = prepare(config_of(write(tmp_path / "a.jsonl", rows)), "chat", encoder(), tmp_path / "cache")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=4)
    table = prepare(config_of(tmp_path / "a.parquet"), "chat", encoder(), tmp_path / "cache")
    assert np.array_equal(lines.tokens_N, table.tokens_N)
    assert np.array_equal(lines.learned_N, table.learned_N)


def test_transforms_of_the_data_and_of_a_source(tmp_path: Path) -> None:
    alpaca = write(tmp_path / "a.jsonl", [{"instruction": "add", "input": "1+1", "output": "2"}, {"output": "?"}])
    shares = write(
        tmp_path / "s.jsonl", [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]
    )
    config = config_of(
        MixSource(source=str(alpaca), transforms=("alpaca",)), MixSource(source=str(shares), transforms=("sharegpt",))
    )
    data = prepare(config, "chat", encoder(), tmp_path / "cache")
    assert texts(data) == ["add\n\n1+12", "ab"]
    assert data.statistics[0]["dropped"] == {"no instruction or no output": 1}
