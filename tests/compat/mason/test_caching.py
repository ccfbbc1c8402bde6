from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.compat.mason.caching import build_words, cache_here, caching_words
from windlass.core.errors import PreconditionError

FINETUNE = "open_instruct/finetune.py"


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """`python` and `gsutil` that write down how they are called; `python` fails where `--fail` is among its words."""
    folder = tmp_path / "bin"
    folder.mkdir()
    python = f'#!/bin/sh\nprintf "%s|" "$@" >>{tmp_path}/called\ncase "$*" in *--fail*) exit 3;; esac\n'
    gsutil = f'#!/bin/sh\nprintf "%s|" "$@" >>{tmp_path}/copied\nfor last; do :; done\necho x >"$last/tokenizer.json"\n'
    for name, text in {"python": python, "gsutil": gsutil}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"}


@pytest.mark.parametrize(
    ("command", "cached"),
    [
        (f"python {FINETUNE} --a 1", f"python {FINETUNE} --a 1 --cache_dataset_only"),
        (f"accelerate launch --x 1 {FINETUNE} --a", f"python {FINETUNE} --a --cache_dataset_only"),
        (
            f"python {FINETUNE} --with_tracking --checkpoint_state_freq 5 --checkpoint_state_dir d --b",
            f"python {FINETUNE} --b --cache_dataset_only",
        ),
        (
            f"python {FINETUNE} --gs_checkpoint_state_dir --b --output_dir o",
            f"python {FINETUNE} --b --output_dir o --cache_dataset_only",
        ),
        ("python train.py --a 1", ""),
    ],
)
def test_what_is_run_here(command: str, cached: str) -> None:
    assert caching_words(command.split()) == tuple(cached.split())


@pytest.mark.parametrize(
    ("command", "start"),
    [
        (f"python {FINETUNE}", ("python",)),
        (f"/venv/bin/python3.12 {FINETUNE}", ("/venv/bin/python3.12",)),
        (f"uv run python {FINETUNE}", ("uv", "run", "python")),
        (f"uv run {FINETUNE}", ("uv", "run", "python")),
        (f"torchrun --nproc_per_node 8 {FINETUNE}", ("python",)),
    ],
)
def test_what_is_built_elsewhere(command: str, start: tuple[str, ...]) -> None:
    words = build_words([*command.split(), "--a", "1", "--exp_name=x", "--output_dir", "o", "--with_tracking", "--b"])
    end = ("--cache_dataset_only", "--dataset_local_cache_dir", "${out}")
    assert words == (*start, FINETUNE, "--a", "1", "--b", *end)


def test_caching_here_passes_words_on_as_they_are(tmp_path: Path, programs: dict[str, str]) -> None:
    said: list[str] = []
    words = ["python", FINETUNE, "--mix", '{"a b": $X}']
    assert cache_here(words, environ=programs, tokenizers=tmp_path, log=said.append)
    assert (tmp_path / "called").read_text() == f'{FINETUNE}|--mix|{{"a b": $X}}|--cache_dataset_only|'
    assert said[-1] == "the dataset is cached"
    assert not cache_here(["python", "train.py"], environ=programs, tokenizers=tmp_path, log=said.append)


def test_a_failure_ends_the_launch(tmp_path: Path, programs: dict[str, str]) -> None:
    with pytest.raises(PreconditionError, match="exited with 3; nothing was submitted") as caught:
        cache_here(["python", FINETUNE, "--fail"], environ=programs, tokenizers=tmp_path, log=lambda _: None)
    assert caught.value.code == "mason-cache-failed"


def test_the_tokenizer_of_a_model_in_a_bucket_is_brought_once(tmp_path: Path, programs: dict[str, str]) -> None:
    words = ["python", FINETUNE, "--model_name_or_path", "gs://bucket/model/"]
    for _ in range(2):
        cache_here(words, environ=programs, tokenizers=tmp_path / "t", log=lambda _: None)
    assert (tmp_path / "copied").read_text().count("gs://bucket/model/tokenizer.json|") == 1
    (folder,) = (tmp_path / "t").iterdir()
    assert folder.name.startswith("tokenizer_")
    assert (tmp_path / "called").read_text().count(f"--model_name_or_path|{folder}/|") == 2


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="cannot start `python`"):
        cache_here(["python", FINETUNE], environ={"PATH": str(tmp_path)}, tokenizers=tmp_path, log=lambda _: None)
