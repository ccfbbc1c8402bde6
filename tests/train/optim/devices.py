"""Where tests of arithmetic run: everywhere on the CPU, and on a GPU where there is one."""

from __future__ import annotations

import torch

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
