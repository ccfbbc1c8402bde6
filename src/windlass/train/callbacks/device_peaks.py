"""Peak rates of accelerators: dense bfloat16 matrix products, without sparsity; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PEAKS", "Peak", "peak_flops"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Peak rate of one kind of device.

    Attributes:
        words: lower-case words that must all occur in the driver's device name.
        tflops: 1e12 floating point operations per second.
        source: data sheet that states the figure.
    """

    words: tuple[str, ...]
    tflops: float
    source: str


PEAKS = (
    Peak(words=("gb300",), tflops=2500.0, source="NVIDIA Blackwell Ultra datasheet, dense BF16"),
    Peak(words=("b300",), tflops=2250.0, source="NVIDIA DGX B300 datasheet, dense BF16, per GPU"),
    Peak(words=("gb200",), tflops=2500.0, source="NVIDIA GB200 NVL72 datasheet, BF16 halved for sparsity"),
    Peak(words=("b200",), tflops=2250.0, source="NVIDIA HGX B200 datasheet, BF16 halved for sparsity"),
    Peak(words=("b100",), tflops=1750.0, source="NVIDIA HGX B100 datasheet, BF16 halved for sparsity"),
    Peak(words=("h200", "nvl"), tflops=835.5, source="NVIDIA H200 NVL datasheet, BF16 halved for sparsity"),
    Peak(words=("h200",), tflops=989.5, source="NVIDIA H200 SXM datasheet, BF16 halved for sparsity"),
    Peak(words=("h100", "nvl"), tflops=835.5, source="NVIDIA H100 NVL datasheet, BF16 halved for sparsity"),
    Peak(words=("h100", "pcie"), tflops=756.5, source="NVIDIA H100 PCIe datasheet, BF16 halved for sparsity"),
    Peak(words=("h100",), tflops=989.5, source="NVIDIA H100 SXM datasheet, BF16 halved for sparsity"),
    Peak(words=("gh200",), tflops=989.5, source="NVIDIA GH200 datasheet, BF16 halved for sparsity"),
    Peak(words=("h800",), tflops=989.5, source="the H100 SXM's; only its links differ"),
    Peak(words=("h20",), tflops=148.0, source="NVIDIA H20 datasheet, dense BF16"),
    Peak(words=("a100",), tflops=312.0, source="NVIDIA A100 datasheet, dense BF16"),
    Peak(words=("a800",), tflops=312.0, source="the A100's; only its links differ"),
    Peak(words=("a40",), tflops=149.7, source="NVIDIA A40 datasheet, dense BF16"),
    Peak(words=("a30",), tflops=165.0, source="NVIDIA A30 datasheet, dense BF16"),
    Peak(words=("a10g",), tflops=70.0, source="AWS G5 instances: A10G, dense BF16"),
    Peak(words=("a10",), tflops=125.0, source="NVIDIA A10 datasheet, dense BF16"),
    Peak(words=("l40s",), tflops=362.05, source="NVIDIA L40S datasheet, dense BF16"),
    Peak(words=("l40",), tflops=181.05, source="NVIDIA L40 datasheet, dense BF16"),
    Peak(words=("l4",), tflops=121.0, source="NVIDIA L4 datasheet, BF16 halved for sparsity"),
    Peak(words=("rtx", "5090"), tflops=209.5, source="NVIDIA RTX Blackwell whitepaper, BF16, FP32 accumulate"),
    Peak(words=("rtx", "4090"), tflops=165.2, source="NVIDIA Ada whitepaper, BF16, FP32 accumulate"),
    Peak(words=("rtx", "3090"), tflops=71.0, source="NVIDIA GA102 whitepaper, BF16, FP32 accumulate"),
    Peak(words=("v100",), tflops=125.0, source="NVIDIA V100 SXM2 datasheet, FP16: it has no BF16"),
    Peak(words=("mi355",), tflops=2516.6, source="AMD Instinct MI355X datasheet, dense BF16"),
    Peak(words=("mi325",), tflops=1307.4, source="AMD Instinct MI325X datasheet, dense BF16"),
    Peak(words=("mi300x",), tflops=1307.4, source="AMD Instinct MI300X datasheet, dense BF16"),
    Peak(words=("mi250x",), tflops=191.5, source="AMD Instinct MI250X datasheet, BF16, one of its two dies"),
)
"""The first match is used, so more specific names come first."""


def peak_flops(name: str) -> float | None:
    """Return the peak operations per second of the device called `name`, or None if the table lacks it."""
    words = name.lower()
    found = next((peak for peak in PEAKS if all(word in words for word in peak.words)), None)
    return None if found is None else found.tflops * 1e12
