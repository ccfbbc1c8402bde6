"""Make peft/: an adapter that PEFT wrote, and the logits of its model; and check that PEFT loads what windlass writes.

    PYTHONPATH=. python tests/train/hf/make_peft.py

Needs PEFT, which windlass does not depend on: run it in an environment of its own, from the root of the checkout.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

import peft
import torch
import transformers
from torch import Tensor, nn

from tests.train.hf.test_peft import MODEL, STORED, TOKENS_BT, base, waves
from windlass.train.hf.peft import read_peft, write_peft

LORA = {"r": 4, "lora_alpha": 6, "use_rslora": True, "lora_dropout": 0.1}
TARGETS = ["q_proj", "v_proj", "down_proj"]


def logits(model: nn.Module) -> Tensor:
    model.eval()
    with torch.no_grad():
        found: Tensor = model(TOKENS_BT).logits
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        own = base(Path(name) / "base")
        plain = transformers.AutoModelForCausalLM.from_pretrained(own)
        config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=TARGETS, **LORA)
        adapted = peft.get_peft_model(plain, config)
        waves(adapted, only="lora_")
        adapted.peft_config["default"].base_model_name_or_path = "base"
        adapted.save_pretrained(STORED)
        (STORED / "README.md").unlink(missing_ok=True)
        wanted = logits(adapted)
        (STORED / "logits.json").write_text(json.dumps([[round(x, 6) for x in row] for row in wanted[:, -1].tolist()]))
        written = write_peft(MODEL, read_peft(STORED, MODEL), Path(name) / "again")
        again = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(own), written)
        assert torch.equal(logits(again), wanted)
        _check_scored(Path(name))


def _check_scored(folder: Path) -> None:
    """Let PEFT load an adapter with a scalar head."""
    config = dataclasses.replace(MODEL, head="scalar")
    own = base(folder / "scored", config)
    kind = transformers.AutoModelForSequenceClassification
    adapted = peft.get_peft_model(
        kind.from_pretrained(own), peft.LoraConfig(task_type="SEQ_CLS", target_modules=TARGETS, **LORA)
    )
    waves(adapted, only="lora_")
    adapted.save_pretrained(folder / "theirs")
    written = write_peft(config, read_peft(folder / "theirs", config), folder / "ours")
    again = peft.PeftModel.from_pretrained(kind.from_pretrained(own), written)
    ids = {"input_ids": TOKENS_BT[:1]}
    with torch.no_grad():
        assert torch.equal(again.eval()(**ids).logits, adapted.eval()(**ids).logits)


if __name__ == "__main__":
    main()
