from __future__ import annotations

import json
from pathlib import Path

import pytest

import windlass
from windlass.core.clock import FakeClock
from windlass.core.errors import InternalError
from windlass.pin.code.pinned import CodePin
from windlass.pin.data.pinned import DataPin
from windlass.pin.environment.pinned import EnvironmentPin
from windlass.pin.provenance import ReplicaRecord, collect, find_seeds, host_facts


def record(**changes: object) -> dict[str, object]:
    parts: dict[str, object] = {
        "run_id": "hello-abcdefgh",
        "spec": {"name": "hello", "path": Path("/x"), "limits": (1, 2.5, None, float("inf"))},
        "overrides": ["params.lr=3e-3"],
        "params": {"seed": 7, "lr": 0.1, "data": {"shuffle_seed": 8}},
        "code": CodePin(kind="commit", commit="c" * 40, tree="t" * 40),
        "environment": EnvironmentPin(kind="uv", lock_file="uv.lock", lock_sha256="0" * 64, key="k"),
        "packages": ["tiny==1.0"],
        "data": [DataPin(name="d", source="file:x", digest="1" * 64, size_bytes=1, kind="file", num_files=1)],
        "replicas": [
            ReplicaRecord(
                task="train", rank=0, command=["python", "t.py"], variables={"HF_TOKEN": "hf_planted", "A": "b"}
            )
        ],
        "secrets": ["HF_TOKEN", "WANDB_API_KEY"],
        "host": {"hostname": "h"},
    }
    return collect(**{**parts, **changes})  # type: ignore[arg-type]


def test_the_record_is_json_and_whole() -> None:
    found = record()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(found) == {
        "schema", "run", "spec", "overrides", "seeds", "code", "environment", "data", "secrets", "replicas", "host",
    }  # fmt: skip
    assert found["seeds"] == {"seed": 7, "data.shuffle_seed": 8}
    assert found["spec"] == {"name": "hello", "path": "/x", "limits": [1, 2.5, None, "inf"]}
    environment = found["environment"]
    assert isinstance(environment, dict)
    assert environment["packages"] == ["tiny==1.0"]


def test_secrets_stand_by_name_only() -> None:
    found = record()
    assert found["secrets"] == ["HF_TOKEN", "WANDB_API_KEY"]
    assert "hf_planted" not in json.dumps(found)
    assert found["replicas"] == [
        {"task": "train", "rank": 0, "command": ["python", "t.py"], "variables": {"A": "b", "HF_TOKEN": "<secret>"}}
    ]


def test_what_is_no_plain_data_is_our_bug() -> None:
    with pytest.raises(InternalError, match=r"provenance\.spec\.x\[0\] is a object"):
        record(spec={"x": [object()]})


@pytest.mark.parametrize(
    ("name", "is_seed"),
    [
        ("seed", True),
        ("SEED", True),
        ("data_seed", True),
        ("seed.numpy", True),
        ("seeds", True),
        ("seedling", False),
        ("reseeded", False),
    ],
)
def test_seeds_are_found_by_name(name: str, is_seed: bool) -> None:
    assert (find_seeds({name: 1}) == {name: 1}) is is_seed


def test_host_facts_say_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, NVIDIA H200, GPU-1, 143771, 570.1'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = host_facts(FakeClock(0))
    assert json.loads(json.dumps(facts)) == facts
    assert facts["collected_at"] == "1970-01-01T00:00:00Z"
    assert facts["windlass_version"] == windlass.__version__
    assert facts["gpus"] == [
        {"index": 0, "name": "NVIDIA H200", "uuid": "GPU-1", "memory_bytes": 143771 * 2**20, "driver": "570.1"}
    ]
    assert isinstance(facts["memory_bytes"], int)
    assert facts["memory_bytes"] > 2**20
    assert str(facts["kernel"]).startswith("Linux ")
    smi.write_text("#!/bin/sh\necho 'no devices' >&2; exit 9\n")
    assert host_facts()["gpus"] == [{"error": "no devices"}]
    smi.unlink()
    assert host_facts()["gpus"] == []
