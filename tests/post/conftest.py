"""Tests of training compute on one thread: sums have one order, and a busy machine does not wait for its own threads."""

from __future__ import annotations

import os

import pytest
import torch

os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that they start


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Other tests of this process may have loaded torch before the variable was set."""
    torch.set_num_threads(1)
