"""Conversations as tokens: exactly the answers are learned, whatever template and tokenizer."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tests.post.gsm8k import rows_of_gsm8k
from windlass.core.errors import SpecError
from windlass.post.data.chat import ChatEncoder, SpanError, special_tokens
from windlass.post.data.rows import Chat, read_chat
from windlass.post.data.templates import CHATML, TEMPLATES, ChatTemplate, TemplateError, find_template
from windlass.post.data.transforms import TRANSFORMS, DropRow
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.tokenizer import ByteTokenizer, FileTokenizer, SpecialIds, Tokenizer
from windlass.train.hf.companions import byte_tokenizer_files

FORGETFUL = (
    "{% for message in messages %}<{{ message.role }}>"
    "{% if message.role == 'assistant' and not loop.last %}{{ message.content.split('</think>')[-1] }}"
    "{% else %}{{ message.content }}{% endif %}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""Removes the reasoning of earlier answers, as Qwen 3's template does."""


def encoder_of(template: str, tokenizer: Tokenizer | None = None) -> ChatEncoder:
    tokenizer = tokenizer or ByteTokenizer()
    compiled = ChatTemplate.compile(template, name="test", tokens=special_tokens(tokenizer))
    return ChatEncoder(compiled, tokenizer, TokenizerConfig(path="bytes"))


def learned_text(encoder: ChatEncoder, chat: Chat) -> list[str]:
    """The learned part of each sequence; the end token is a line feed."""
    texts = []
    for sequence in encoder.sequences(chat):
        ids = np.where(sequence.ids == 256, 10, sequence.ids)
        texts.append(bytes(ids[sequence.is_learned].tolist()).decode())
    return texts


def chat(*turns: str) -> Chat:
    roles = ("user", "assistant")
    return read_chat({"messages": [{"role": roles[at % 2], "content": turn} for at, turn in enumerate(turns)]})


def test_plain_text_learns_the_completion_and_the_end_token() -> None:
    encoder = encoder_of(TEMPLATES["plain"])
    (sequence,) = encoder.sequences(chat("1+1=", "2"))
    assert sequence.ids.tolist() == [*b"1+1=2", 256]
    assert sequence.is_learned.tolist() == [False] * 4 + [True] * 2


def test_every_answer_is_learned_with_its_end_mark_and_nothing_else() -> None:
    encoder = encoder_of(CHATML)
    assert learned_text(encoder, chat("a", "one", "b", "two")) == ["one<|im_end|>two<|im_end|>"]
    assert learned_text(encoder_of(TEMPLATES["tulu"]), chat("a", "one", "b", "two")) == ["one\ntwo\n"]


def test_given_answers_are_not_learned() -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "b"},
    ]
    row = read_chat({"prompt": turns, "completion": "two"})
    assert learned_text(encoder_of(CHATML), row) == ["two<|im_end|>"]


def test_a_template_that_rewrites_history_forks_the_conversation() -> None:
    encoder = encoder_of(FORGETFUL)
    row = chat("a", "x</think>one", "b", "y</think>two", "c", "three")
    sequences = encoder.sequences(row)
    texts = [bytes(sequence.ids.tolist()).decode() for sequence in sequences]
    assert texts[0] == "<user>a</s><assistant>x</think>one</s>"
    assert texts[-1].endswith("<assistant>two</s><user>c</s><assistant>three</s>")
    assert "".join(learned_text(encoder, row)) == "x</think>one</s>y</think>two</s>three</s>"  # each exactly once


def test_an_unchanged_history_stays_one_sequence() -> None:
    assert len(encoder_of(FORGETFUL).sequences(chat("a", "one", "b", "two"))) == 1


def test_a_template_that_loses_the_answer_is_refused() -> None:
    lossy = "{% for m in messages %}{{ m.role }}{% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
    with pytest.raises(SpanError, match="does not render the answer"):
        encoder_of(lossy).sequences(chat("a", "one"))


def test_the_prompt_of_generation_is_the_beginning_of_the_training_text() -> None:
    encoder = encoder_of(CHATML)
    (whole,) = encoder.sequences(chat("a", "one"))
    prompt = encoder.prompt(Chat(messages=({"role": "user", "content": "a"},)))
    assert whole.ids[: len(prompt)].tolist() == prompt
    assert int(whole.is_learned.argmax()) == len(prompt)


@cache
def merging_tokenizer() -> FileTokenizer:
    """A tokenizer with merges over the borders of answers, such as `t\\nA`."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["assistant\nAnswer", "assistant\nAll the answers"] * 50, trainer)
    return FileTokenizer(made, SpecialIds(eos_id=made.token_to_id("<|im_end|>")))


@given(st.lists(st.text(min_size=1, max_size=30).filter(lambda text: bool(text.strip())), min_size=2, max_size=6))
def test_learned_tokens_decode_to_the_answers(turns: list[str]) -> None:
    turns = turns[: len(turns) // 2 * 2]
    tokenizer = merging_tokenizer()
    encoder = encoder_of(CHATML, tokenizer)
    try:
        sequences = encoder.sequences(chat(*turns))
    except SpanError:
        return  # refused, never learned wrongly
    text = "".join(
        tokenizer._inner.decode(sequence.ids[sequence.is_learned].tolist(), skip_special_tokens=False)
        for sequence in sequences
    )
    assert text == "".join(f"{turn}<|im_end|>" for turn in turns[1::2])


def test_exactly_the_answers_of_gsm8k_are_learned() -> None:
    tokenizer = merging_tokenizer()
    encoder = encoder_of(CHATML, tokenizer)
    rows = rows_of_gsm8k() or [{"question": "How many are 3 + 4?", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"}]
    for row in rows:
        columns = TRANSFORMS["gsm8k"](row)
        assert not isinstance(columns, DropRow)
        (sequence,) = encoder.sequences(read_chat(columns))
        learned = tokenizer._inner.decode(sequence.ids[sequence.is_learned].tolist(), skip_special_tokens=False)
        assert learned == f"{row['answer']}<|im_end|>"
        assert sequence.is_learned.tolist() == sorted(sequence.is_learned.tolist())


def test_a_token_over_a_border_is_split_as_generation_splits_it() -> None:
    tokenizer = merging_tokenizer()
    encoder = encoder_of(CHATML, tokenizer)
    (whole,) = encoder.sequences(chat("a", "Answer"))
    joined = tokenizer.encode("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nAnswer<|im_end|>")
    assert whole.ids.tolist() != list(joined)  # the test's premise: merges cross the border
    prompt = encoder.prompt(Chat(messages=({"role": "user", "content": "a"},)))
    assert whole.ids[: len(prompt)].tolist() == prompt


def test_the_byte_tokenizer_as_a_file_gives_the_same_ids(tmp_path: Path) -> None:
    for name, content in byte_tokenizer_files(SpecialIds(eos_id=256, pad_id=257), 128).items():
        (tmp_path / name).write_bytes(content)
    inner = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    as_file = FileTokenizer(inner, SpecialIds(eos_id=256, pad_id=257))
    for name, template in TEMPLATES.items():
        rows = [chat("häl\nlo", "wörld", "b", "ok"), chat("x", "\n y \n")]
        for row in rows:
            first, second = (encoder_of(template, each).sequences(row) for each in (ByteTokenizer(), as_file))
            assert [each.ids.tolist() for each in first] == [each.ids.tolist() for each in second], name
            assert [each.is_learned.tolist() for each in first] == [each.is_learned.tolist() for each in second], name


def test_templates_of_folders_files_and_names(tmp_path: Path) -> None:
    settings = {"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert find_template("auto", folder=str(tmp_path), tokens={}).text == "D"
    (tmp_path / "chat_template.jinja").write_text("J")
    assert find_template("auto", folder=str(tmp_path), tokens={}).text == "J"
    assert find_template("auto", tokens={}).text == CHATML
    assert find_template(str(tmp_path / "chat_template.jinja"), tokens={}).text == "J"
    with pytest.raises(SpecError, match="unknown chat template `chatmi`") as caught:
        find_template("chatmi", tokens={})
    assert "did you mean `chatml`" in caught.value.problems[0].hint


def test_templates_are_sandboxed_and_their_errors_named() -> None:
    with pytest.raises(SpecError, match="line 2") as caught:
        ChatTemplate.compile("a\n{% if %}", name="broken", tokens={})
    assert caught.value.code == "template-broken"
    hostile = ChatTemplate.compile("{{ ''.__class__.__mro__[1].__subclasses__() }}", name="hostile", tokens={})
    with pytest.raises(TemplateError, match="SecurityError"):
        hostile.render([])
    refusing = ChatTemplate.compile("{{ raise_exception('roles must alternate') }}", name="strict", tokens={})
    with pytest.raises(TemplateError, match="roles must alternate"):
        refusing.render([])


def test_generation_blocks_and_loop_controls_are_read() -> None:
    text = "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    template = ChatTemplate.compile(text, name="x", tokens={})
    messages = [{"role": "system", "content": "no"}, {"role": "user", "content": "yes"}]
    assert template.render(messages) == "yes"


def test_random_conversations_are_learned_exactly_with_every_named_template() -> None:
    draw = random.Random(0)
    for name, template in TEMPLATES.items():
        encoder = encoder_of(template)
        for _ in range(50):
            turns = [
                "".join(draw.choices("ab \n<>|", k=draw.randint(1, 9))) + "x" for _ in range(2 * draw.randint(1, 4))
            ]
            marks = {"chatml": "<|im_end|>", "tulu": "\n", "plain": "\n"}
            wanted = "".join(turn + marks[name] for turn in turns[1::2])
            assert "".join(learned_text(encoder, chat(*turns))) == wanted
