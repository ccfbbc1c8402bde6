"""Rates by a clock that the test moves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.train.callbacks.conftest import Make
from tests.train.tiny import Diary, point_module
from windlass.train.callbacks.device_peaks import PEAKS, peak_flops
from windlass.train.callbacks.speed import Speed


def test_rates_over_a_window_without_the_first_step(make: Make) -> None:
    times = iter([100.0, 101.0, 103.0, 103.5, 104.0])
    diary = Diary()
    trainer = make({"speed": Speed(window=2, now=lambda: next(times)), "diary": diary})
    trainer.fit()
    rows = trainer.step_tokens
    rates = {step: values.get("speed/tokens_per_s") for step, values in diary.metrics.items()}
    expected = {2: rows, 3: 2 * rows / 3.0, 4: 2 * rows / 2.5, 5: 2 * rows}
    assert rates == {1: None, **{step: pytest.approx(value) for step, value in expected.items()}}
    assert diary.metrics[3]["speed/step_s"] == pytest.approx(1.5)
    assert diary.metrics[1]["speed/data_wait_s"] >= 0.0
    assert 0.0 <= diary.metrics[5]["speed/data_wait_share"] < 1.0
    assert "speed/mfu" not in diary.metrics[5]


def test_share_of_the_peak(make: Make) -> None:
    class Counted(type(point_module())):  # type: ignore[misc]
        def flops(self, batch: Any) -> float:
            return 3e12

    times = iter([0.0, 2.0, 4.0])
    module = point_module()
    module.__class__ = Counted
    diary = Diary()
    speed = Speed(peak_tflops=6.0, now=lambda: next(times))
    make({"speed": speed, "diary": diary}, steps=3, module=module).fit()
    assert diary.metrics[3]["speed/mfu"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H200", 989.5),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A10G", 70.0),
        ("NVIDIA A10", 125.0),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA L4", 121.0),
        ("NVIDIA GB200", 2500.0),
        ("NVIDIA B200", 2250.0),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("AMD Instinct MI300X", 1307.4),
    ],
)
def test_peaks_by_name(name: str, tflops: float) -> None:
    assert peak_flops(name) == tflops * 1e12


def test_unknown_devices_have_no_peak() -> None:
    assert peak_flops("") is None
    assert peak_flops("NVIDIA Something") is None


def test_each_peak_can_be_found_and_has_a_source() -> None:
    for peak in PEAKS:
        assert peak_flops(" ".join(peak.words)) == peak.tflops * 1e12
        assert peak.source
