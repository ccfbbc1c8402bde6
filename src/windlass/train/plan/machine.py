"""Hardware for a plan: the number of processes, with one GPU each, and the properties of that GPU.

Peaks in bfloat16 are those of `callbacks/device_peaks.py`. Memory, and float32 without tensor cores: vendors' data sheets.
NVIDIA: A100 (2021), H100 (2023), H200 (2024), GH200 (2024), L40S (2023), DGX B200 (2024), Ada architecture white paper
(RTX 4090). AMD: Instinct MI300X (2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from windlass.core.errors import UsageError
from windlass.core.names import nearest
from windlass.train.callbacks.device_peaks import peak_flops

__all__ = ["DEFAULT_MFU", "GPUS", "Gpu", "MachineSpec"]

DEFAULT_MFU = 0.35
"""Default model FLOPs utilisation; torchtitan reports 0.33 to 0.39 for Llama 3.1 8B on 8 H100 in bfloat16.

Source: torchtitan, `benchmarks/llama3_h100_202412_torchtitan.md`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Properties of a kind of GPU.

    Attributes:
        memory_bytes: nominal memory, of which the driver reserves a little.
        bfloat16_flops: peak dense operations per second.
        float32_flops: peak operations per second without tensor cores.
        memory_bytes_per_s: peak bandwidth of its memory.
    """

    memory_bytes: int
    bfloat16_flops: float
    float32_flops: float
    memory_bytes_per_s: float

    def peak_flops(self, precision: str) -> float:
        """Return the peak operations per second in the precision of a plan."""
        return self.bfloat16_flops if precision == "bfloat16" else self.float32_flops


def _gpu(name: str, memory_gb: int, float32_tflops: float, memory_tb_per_s: float) -> Gpu:
    bfloat16 = peak_flops(name)
    assert bfloat16 is not None  # every GPU here is in that table
    return Gpu(
        memory_bytes=memory_gb * 10**9,
        bfloat16_flops=bfloat16,
        float32_flops=float32_tflops * 10**12,
        memory_bytes_per_s=memory_tb_per_s * 10**12,
    )


GPUS: Mapping[str, Gpu] = {
    name: _gpu(name, memory_gb, float32_tflops, memory_tb_per_s)
    for name, memory_gb, float32_tflops, memory_tb_per_s in (
        ("a100-40gb", 40, 19.5, 1.555),
        ("a100-80gb", 80, 19.5, 2.039),
        ("h100-80gb", 80, 67.0, 3.35),
        ("h100-pcie-80gb", 80, 51.0, 2.0),
        ("h200-141gb", 141, 67.0, 4.8),
        ("gh200-96gb", 96, 67.0, 4.0),
        ("b200-180gb", 180, 75.0, 8.0),
        ("l40s-48gb", 48, 91.6, 0.864),
        ("rtx-4090-24gb", 24, 82.6, 1.008),
        ("mi300x-192gb", 192, 163.4, 5.3),
    )
}
"""GPUs by the name that `gpu=` accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """Processes of a plan, with one GPU each.

    Attributes:
        gpu: name in the table; if empty, time and the fraction of memory are not estimated.
        mfu: expected share of the peak.
        per_node: GPUs per node.
    """

    world: int = 1
    gpu: str = ""
    mfu: float = DEFAULT_MFU
    per_node: int = 8

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> MachineSpec:
        """Parse `world=64`, `gpu=h100-80gb`, `mfu=0.4`, `per_node=4`.

        Raises:
            UsageError: a value is out of range, or there is no such GPU in the table.
        """
        gpu = words.get("gpu", "")
        if gpu and gpu not in GPUS:
            close = next((name for name in GPUS if name.startswith(gpu.lower())), "") or nearest(gpu.lower(), GPUS)
            hint = f"did you mean `gpu={close}`?" if close else f"there are {', '.join(GPUS)}"
            raise UsageError(f"unknown GPU `{gpu}`", hint=hint, code="unknown-name")
        mfu = _number(words, "mfu", DEFAULT_MFU)
        if not 0 < mfu <= 1:
            raise UsageError(
                f"invalid mfu `{words['mfu']}`: it must be above 0 and at most 1",
                hint="write one such as `mfu=0.4`",
                code="invalid-value",
            )
        return cls(world=_count(words, "world", 1), gpu=gpu, mfu=mfu, per_node=_count(words, "per_node", 8))


def _count(words: Mapping[str, str], name: str, default: int) -> int:
    text = words.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(
            f"invalid {name} `{text}`: it must be a positive integer",
            hint=f"write one such as `{name}=8`",
            code="invalid-value",
        )
    return int(text)


def _number(words: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(words.get(name, default))
    except ValueError:
        hint = f"write one such as `{name}={default}`"
        raise UsageError(
            f"invalid {name} `{words[name]}`: it must be a number", hint=hint, code="invalid-value"
        ) from None
