"""Chat templates: named ones, those of Hugging Face folders, and your own, in sandboxed Jinja.

The environment is the one that Hugging Face templates expect: trimmed blocks, loop controls, `raise_exception`,
`strftime_now`, and `{% generation %}` blocks. Source: transformers, "Chat templates", section on writing templates.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.core.errors import Problem, SpecError, WindlassError
from windlass.core.json_text import read_json
from windlass.core.names import nearest
from windlass.post.data.rows import Message

__all__ = ["TEMPLATES", "ChatTemplate", "TemplateError", "find_template"]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TULU = (
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "<|assistant|>\n{{ message.content }}{{ eos_token }}{% if not loop.last %}\n{% endif %}"
    "{% else %}<|{{ message.role }}|>\n{{ message.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

PLAIN = (
    "{% for message in messages %}{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)

TEMPLATES: Mapping[str, str] = {"chatml": CHATML, "tulu": TULU, "plain": PLAIN}
"""Templates by name: ChatML, Tulu's (open-instruct), and text without marks, each answer ended by the end token."""

_MAX_BYTES = 1 << 20


class TemplateError(ValueError):
    """A template rejected a conversation, with its own message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A compiled template.

    Attributes:
        name: where it comes from, for messages.
        text: its source.
        tokens: what `bos_token`, `eos_token` and `pad_token` stand for.
    """

    name: str
    text: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    _compiled: Any = field(repr=False, compare=False)

    @classmethod
    def compile(cls, text: str, *, name: str, tokens: Mapping[str, str]) -> ChatTemplate:
        """Compile a template; raises SpecError with the line of a syntax error."""
        environment, syntax_error = _environment()
        try:
            compiled = environment.from_string(text)
        except syntax_error as error:
            message = f"chat template {name}, line {error.lineno}: {error.message}"
            raise SpecError(
                [Problem(message, "template-broken", hint="correct it, or use another template")]
            ) from error
        return cls(name=name, text=text, tokens=dict(tokens), _compiled=compiled)

    @property
    def digest(self) -> str:
        """Digest of the source and of the special tokens."""
        parts = json.dumps([self.text, dict(self.tokens)], sort_keys=True)
        return hashlib.sha256(parts.encode()).hexdigest()

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = False, tools: Sequence[object] = ()
    ) -> str:
        """Return the text of a conversation; with `add_generation_prompt`, ending where the assistant's turn begins.

        Raises:
            TemplateError: the template rejects these messages, or fails.
        """
        try:
            text: str = self._compiled.render(
                messages=[dict(message) for message in messages],
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self.tokens,
            )
        except Exception as error:  # a template is code of others: any error is about it and the messages
            raise TemplateError(f"chat template {self.name}: {type(error).__name__}: {error}") from error
        return text


def find_template(name: str, *, folder: str = "", tokens: Mapping[str, str]) -> ChatTemplate:
    """Return a template by name, from a file, or with `auto` the one of the model's folder (chatml if it has none).

    Args:
        folder: local folder of the model and its tokenizer; empty if there is none.

    Raises:
        SpecError: unknown name, unreadable file, or a syntax error in the template.
    """
    if name == "auto":
        text = _of_folder(Path(folder)) if folder else None
        origin = f"of {folder}" if text is not None else "chatml"
        return ChatTemplate.compile(CHATML if text is None else text, name=origin, tokens=tokens)
    if name in TEMPLATES:
        return ChatTemplate.compile(TEMPLATES[name], name=name, tokens=tokens)
    place = Path(name).expanduser()
    if not place.is_file():
        close = nearest(name, TEMPLATES)
        hint = f"did you mean `{close}`?" if close else f"templates: auto, {', '.join(TEMPLATES)}, or a file"
        raise SpecError([Problem(f"unknown chat template `{name}`", "unknown-name", hint=hint)])
    return ChatTemplate.compile(_read(place), name=name, tokens=tokens)


def _of_folder(folder: Path) -> str | None:
    """Return the template of a Hugging Face folder: its own file, or the key of tokenizer_config.json."""
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        return _read(beside)
    config = folder / "tokenizer_config.json"
    found = read_json(config).get("chat_template") if config.is_file() else None
    if isinstance(found, list):  # several named ones
        named = {str(each.get("name")): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _read(path: Path) -> str:
    if path.stat().st_size > _MAX_BYTES:
        message = f"chat template {path} has {path.stat().st_size} bytes; at most {_MAX_BYTES} are read"
        raise SpecError([Problem(message, "template-broken", hint="name another file")])
    return path.read_text(encoding="utf-8")


def _environment() -> tuple[Any, type[Any]]:
    try:
        from jinja2 import TemplateSyntaxError  # lazy: 0.1 s, and only for rendering
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise WindlassError(
            "chat templates need the package jinja2", hint="`pip install 'windlass[post]'`", code="extra-missing"
        ) from error

    class Generation(Extension):
        """Passes `{% generation %}` blocks through: answers are found by rendering, not by these marks."""

        tags = {"generation"}  # noqa: RUF012  (jinja2's own interface)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            from jinja2 import nodes

            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: dt.datetime.now().strftime(form)
    return environment, TemplateSyntaxError


def _to_json(value: object, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    """Return JSON without the escapes for HTML that jinja2's own filter adds."""
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> None:
    raise TemplateError(message)
