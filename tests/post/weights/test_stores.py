"""Stores of weight versions: whole or absent, bit-equal through changes, refused when damaged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from windlass.core.errors import UsageError
from windlass.post.rollout.engine import EngineError
from windlass.post.rollout.types import ScoreRequest
from windlass.post.weights.files import FileWeightStore
from windlass.post.weights.store import AdapterBase, MemoryWeightStore, Probe, WeightRef, WeightStore

PROBE = Probe(requests=(ScoreRequest(ids=(1, 2, 3)),), logp=((-0.1, -0.30000001),), tolerance=1e-5)


def weights(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed": (61, 32), "bias": (32,), "head": (32, 61)}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def step(tensors: Mapping[str, Tensor], seed: int, share: float = 0.02) -> None:
    """Change some of the elements."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors.values():
        tensor[torch.rand(tensor.shape, generator=generator) < share] += 0.5


def empty(like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.full_like(tensor, float("nan")) for name, tensor in like.items()}


def equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(tensor.view(torch.uint8), second[name].view(torch.uint8)) for name, tensor in first.items())


@pytest.fixture(params=["memory", "files", "deltas"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> WeightStore:
    if request.param == "memory":
        return MemoryWeightStore()
    return FileWeightStore(tmp_path / "weights", has_deltas=request.param == "deltas", bucket_bytes=1024)


def test_a_version_is_what_was_published(store: WeightStore) -> None:
    assert store.latest() is None
    own = weights()
    first = store.publish(own, 3, PROBE)
    before = {name: tensor.clone() for name, tensor in own.items()}
    step(own, 1)
    second = store.publish(own, 4)
    assert store.latest() == second
    for ref, expected, probe in ((first, before, PROBE), (second, own, None)):
        into = empty(own)
        assert store.fetch(ref, into) == probe
        assert equal(into, expected)


def test_changes_are_applied_to_what_is_held(store: WeightStore) -> None:
    own, into = weights(), empty(weights())
    have: WeightRef | None = None
    for version in range(5):
        ref = store.publish(own, version)
        store.fetch(ref, into, have=have)
        assert equal(into, own)
        have = ref
        step(own, version)


def test_other_names_and_shapes_are_refused_and_nothing_is_written(store: WeightStore) -> None:
    ref = store.publish(weights(), 0)
    for wrong in ({"embed": torch.zeros(61, 32)}, {**weights(1), "bias": torch.zeros(33)}):
        before = {name: tensor.clone() for name, tensor in wrong.items()}
        with pytest.raises(EngineError, match="engine's model has"):
            store.fetch(ref, wrong)
        assert equal(wrong, before)


def test_a_retired_version_is_absent(store: WeightStore) -> None:
    refs = [store.publish(weights(version), version) for version in range(4)]
    store.retire({1})
    for ref in (refs[0], refs[2]):
        with pytest.raises(EngineError, match=f"version {ref.version} .* do not exist any more"):
            store.fetch(ref, empty(weights()))
    for ref in (refs[1], refs[3]):
        into = empty(weights())
        store.fetch(ref, into)
        assert equal(into, weights(ref.version))


def test_a_learner_that_went_back_replaces_versions(store: WeightStore) -> None:
    refs = [store.publish(weights(version), version) for version in range(4)]
    again = store.publish(weights(9), 2)
    assert store.latest() == again
    for ref in refs[2:]:
        with pytest.raises(EngineError):
            store.fetch(ref, empty(weights()))
    into = empty(weights())
    store.fetch(again, into, have=refs[3])
    assert equal(into, weights(9))


def test_weights_are_converted_to_the_type_of_the_engine(store: WeightStore) -> None:
    own = weights()
    into = {name: torch.zeros_like(tensor, dtype=torch.bfloat16) for name, tensor in own.items()}
    store.fetch(store.publish(own, 0), into)
    assert equal(into, {name: tensor.bfloat16() for name, tensor in own.items()})


# ------------------------------------------------------------------------------------------------------------- files


def test_a_hundred_versions_of_changes_are_bit_equal_and_small(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    own = {
        name: torch.randn(shape, generator=generator).bfloat16() for name, shape in (("a", (512, 256)), ("b", (4096,)))
    }
    store = FileWeightStore(tmp_path / "weights", has_deltas=True, whole_every=40)
    follower, whole = empty(own), 2 * sum(tensor.numel() for tensor in own.values())
    have: WeightRef | None = None
    for version in range(101):
        ref = store.publish(own, version)
        store.fetch(ref, follower, have=have)
        assert equal(follower, own), version
        delta = store.folder / f"v{version:08d}" / "weights.delta"
        assert delta.exists() == (version % 40 != 0)
        if delta.exists():
            assert sum(path.stat().st_size for path in delta.parent.iterdir()) <= 0.06 * whole
        if version % 23 == 22:
            late = empty(own)
            FileWeightStore(store.folder).fetch(ref, late)
            assert equal(late, own), version
        have = ref
        step(own, version)


def test_whole_versions_are_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    own = {**weights(), "half": torch.ones(3).bfloat16()}
    FileWeightStore(tmp_path).publish(own, 7)
    assert equal(load_file(tmp_path / "v00000007" / "weights.safetensors"), own)


def test_retire_keeps_what_a_kept_version_is_relative_to(tmp_path: Path) -> None:
    store, own = FileWeightStore(tmp_path, has_deltas=True, whole_every=3), weights()
    refs, contents = [], []
    for version in range(8):
        refs.append(store.publish(own, version))
        contents.append({name: tensor.clone() for name, tensor in own.items()})
        step(own, version)
    store.retire({4})
    assert sorted(path.name for path in tmp_path.glob("v*")) == [f"v{n:08d}" for n in (3, 4, 6, 7)]
    for version in (4, 7):
        into = empty(own)
        store.fetch(refs[version], into)
        assert equal(into, contents[version])


def test_what_a_process_reads_is_not_removed(tmp_path: Path) -> None:
    store = FileWeightStore(tmp_path)
    for version in range(3):
        store.publish(weights(version), version)
    script = "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_SH); print(flush=True); sys.stdin.read()"
    manifest = tmp_path / "v00000000" / "manifest.json"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(manifest)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        store.retire(())
        assert sorted(path.name for path in tmp_path.glob("v*")) == ["v00000000", "v00000002"]
        reader.communicate(b"")
    store.retire(())
    assert [path.name for path in tmp_path.glob("v*")] == ["v00000002"]


def test_a_publisher_that_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, own = FileWeightStore(tmp_path, has_deltas=True), weights()
    first = store.publish(own, 0)
    step(own, 1)

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("windlass.post.weights.files.checksum", fail)
        with pytest.raises(OSError, match="No space"):
            store.publish(own, 1)
    assert store.latest() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == [".latest", "v00000000"]
    # What the file of the last weights contains is unknown now, so the next version is whole.
    into = empty(own)
    store.fetch(store.publish(own, 1), into, have=first)
    assert equal(into, own)
    assert (tmp_path / "v00000001" / "weights.safetensors").exists()


@pytest.mark.parametrize("damage", ["flipped bit", "half a file", "no file", "half a manifest", "other checksum"])
@pytest.mark.parametrize("is_delta", [False, True])
def test_damaged_versions_are_refused(tmp_path: Path, damage: str, is_delta: bool) -> None:
    store, own = FileWeightStore(tmp_path, has_deltas=True), weights()
    have = store.publish(own, 0)
    held = {name: tensor.clone() for name, tensor in own.items()}
    if is_delta:
        step(own, 1)
        ref = store.publish(own, 1)
    else:
        ref = have
    folder = tmp_path / f"v{ref.version:08d}"
    file, manifest = next(folder.glob("weights.*")), folder / "manifest.json"
    content = bytearray(file.read_bytes())
    if damage == "flipped bit":
        content[-3] ^= 4
        file.write_bytes(content)
    elif damage == "half a file":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "no file":
        file.unlink()
    elif damage == "half a manifest":
        manifest.write_bytes(manifest.read_bytes()[:100])
        with pytest.raises(EngineError, match="damaged"):
            store.latest()
    else:
        data = json.loads(manifest.read_bytes())
        data["pieces"][0][3] ^= 1
        manifest.write_text(json.dumps(data))
    with pytest.raises(EngineError, match=r"damaged|contains version"):
        store.fetch(ref, held, have=have if is_delta else None)


def test_a_version_in_place_of_another_is_refused(tmp_path: Path) -> None:
    store = FileWeightStore(tmp_path)
    store.publish(weights(0), 0)
    ref = store.publish(weights(1), 1)
    shutil.rmtree(tmp_path / "v00000001")
    shutil.copytree(tmp_path / "v00000000", tmp_path / "v00000001")
    with pytest.raises(EngineError, match=r"contains version 0 .* and not version 1"):
        store.fetch(ref, empty(weights()))


def test_changes_to_other_weights_than_are_held_are_refused(tmp_path: Path) -> None:
    store, own = FileWeightStore(tmp_path, has_deltas=True), weights()
    have = store.publish(own, 0)
    step(own, 1)
    ref = store.publish(own, 1)
    into = weights()
    into["head"][0, 0] += 1
    with pytest.raises(EngineError, match="damaged: piece 0 has another checksum"):
        store.fetch(ref, into, have=have)


def adapter_of(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + seed)
    shapes = {"embed.lora_a": (2, 32), "embed.lora_b": (61, 2), "head.lora_a": (2, 61), "head.lora_b": (32, 2)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def merged(base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], scales: Mapping[str, float]) -> dict[str, Tensor]:
    updates = {name: scale * adapter[f"{name}.lora_b"] @ adapter[f"{name}.lora_a"] for name, scale in scales.items()}
    return {name: value + updates.get(name.removesuffix(".weight"), 0.0) for name, value in base.items()}


def test_only_an_adapter_travels_and_its_base_is_read_once(tmp_path: Path) -> None:
    store, reader = FileWeightStore(tmp_path), FileWeightStore(tmp_path)
    frozen = {(name if name == "bias" else f"{name}.weight"): value for name, value in weights().items()}
    scales = {"embed": 2.0, "head": 0.5}
    adapter = AdapterBase(base=store.publish_base(frozen), scales=scales)
    into, have = empty(frozen), None
    for version in range(4):
        own = adapter_of(version)
        ref = store.publish(own, version, PROBE, adapter=adapter)
        assert reader.fetch(ref, into, have=have) == PROBE
        for name, value in merged(frozen, own, scales).items():
            torch.testing.assert_close(into[name], value, rtol=1e-5, atol=1e-5)
        if have is None:  # a process that has the base does not read it again
            (tmp_path / "base").rename(tmp_path / "away")
        have = ref
    assert have is not None
    store.retire([3])
    with pytest.raises(EngineError, match="do not exist any more"):
        FileWeightStore(tmp_path).fetch(have, empty(frozen))
    (tmp_path / "away").rename(tmp_path / "base")
    late = empty(frozen)
    assert {name: value.shape for name, value in FileWeightStore(tmp_path).empty(have).items()} == {
        name: value.shape for name, value in late.items()
    }
    FileWeightStore(tmp_path).fetch(have, late)
    assert equal(late, into)


def test_an_adapter_beside_another_base_is_refused(tmp_path: Path) -> None:
    store = FileWeightStore(tmp_path)
    frozen = {f"{name}.weight": value for name, value in weights().items()}
    adapter = AdapterBase(base=store.publish_base(frozen), scales={"embed": 1.0, "head": 1.0})
    ref = store.publish(adapter_of(0), 0, adapter=adapter)
    step(frozen, 1)
    store.publish_base(frozen)
    with pytest.raises(EngineError, match=r"contains version 0 \(.*\) and not version 0"):
        FileWeightStore(tmp_path).fetch(ref, empty(frozen))


def test_a_negative_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="version -1"):
        FileWeightStore(tmp_path).publish(weights(), -1)


MEMORY = """
import sys
from pathlib import Path
import torch
from windlass.post.weights.files import FileWeightStore

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024

torch.set_num_threads(1)
own = {f"w{n}": torch.randn(4 << 20).bfloat16() for n in range(12)}
torch.randn(4 << 20)
store = FileWeightStore(Path(sys.argv[1]), has_deltas=True, bucket_bytes=8 << 20)
before = peak()
have = None
for version in range(3):
    ref = store.publish(own, version)
    store.fetch(ref, own, have=have)
    have = ref
    for tensor in own.values():
        tensor[:: 50] += 1.0
FileWeightStore(Path(sys.argv[1])).fetch(ref, own)
print(peak() - before)
"""


@pytest.mark.system
def test_publishing_and_fetching_take_two_buckets_of_memory(tmp_path: Path) -> None:
    """12 tensors of 8 MiB in buckets of 8 MiB."""
    run = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(run.stdout) <= 2 * (8 << 20)
