"""Step 1 of the ladder: what the program imports is there and imports, and the node has its GPUs.

python checks/environment.py ray torch deepspeed vllm transformers
"""

import importlib
import json
import os
import platform
import sys

from windlass import report


def main():
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in sys.argv[1:]:
        found[name] = str(getattr(importlib.import_module(name), "__version__", "there"))
    if "torch" in found:
        torch = importlib.import_module("torch")
        wanted, there = int(os.environ["WINDLASS_NUM_GPUS"]), torch.cuda.device_count()
        if wanted != there:
            sys.exit(f"torch {torch.__version__} sees {there} of {wanted} GPUs; {torch.version.cuda=}")
        found["gpu"] = torch.cuda.get_device_name(0) if there else "none"
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version()) if there else "none"
    out = report.place().out
    out.mkdir(parents=True, exist_ok=True)
    (out / "proof.json").write_text(json.dumps(found))
    print(found, flush=True)


if __name__ == "__main__":
    main()
