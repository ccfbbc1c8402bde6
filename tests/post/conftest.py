"""Tests of training compute on one thread: sums have one order, and a busy machine does not wait for its own threads."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
