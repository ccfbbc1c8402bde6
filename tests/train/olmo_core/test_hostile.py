"""A list of contents that is not what it seems runs nothing and is an error, by the way that OLMo-core's are read."""

from __future__ import annotations

import contextlib
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.train.hf.test_convert_weights import decoder
from tests.train.olmo_core.written import model_data, state_of, write
from windlass.train.errors import CheckpointError
from windlass.train.olmo_core.checkpoint import open_olmo_core
from windlass.train.olmo_core.config import from_olmo_core

CONFIG = from_olmo_core(model_data(n_layers=1))


class Payload:
    """Calls a function when it is unpickled by a loader that trusts the file."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.args


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = state_of(decoder(CONFIG), CONFIG)
    return write(tmp_path_factory.mktemp("olmo") / "step3", state, model_data(n_layers=1))


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "step3"))


@pytest.mark.parametrize("function", [open, eval, exec, Path.touch])
def test_nothing_that_a_file_names_is_called(folder: Path, function: Any) -> None:
    victim = folder.parent / "victim"
    args: tuple[Any, ...] = {open: (str(victim), "w"), Path.touch: (victim,)}.get(
        function, (f"__import__('pathlib').Path({str(victim)!r}).touch()",)
    )
    (folder / "model_and_optim" / ".metadata").write_bytes(
        pickle.dumps({"state_dict_metadata": Payload(function, *args)})
    )
    with pytest.raises(CheckpointError, match=str(folder)):
        open_olmo_core(str(folder))
    assert not victim.exists()


@pytest.mark.parametrize(
    "code",
    [
        b"cos\nsystem\n(S'touch victim'\ntR.",
        b"ctorch\nload\n(S'victim'\ntR.",
        b"ctorch.distributed.checkpoint.metadata\nMetadata.__init__\n.",
        b"\x80\x04\x8c\x05torch\x8c\x10serialization.os\x93.",
        b"Pvictim\n.",
        b"\x82\x01.",
        b"I1\n.",
        b"}.",
        b"",
        b"not a pickle",
    ],
)
def test_hand_written_code_is_refused(folder: Path, code: bytes) -> None:
    (folder / "model_and_optim" / ".metadata").write_bytes(code)
    with pytest.raises(CheckpointError, match=str(folder)):
        open_olmo_core(str(folder))


def test_changed_bytes_give_an_error_or_a_checkpoint(folder: Path) -> None:
    place = folder / "model_and_optim" / ".metadata"
    whole = place.read_bytes()
    chance = random.Random(0)
    for _ in range(500):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        place.write_bytes(content[: chance.choice([len(content), chance.randint(1, len(content))])])
        with contextlib.suppress(CheckpointError):
            open_olmo_core(str(folder))
