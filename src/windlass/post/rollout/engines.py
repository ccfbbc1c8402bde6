"""Engines by name, built from settings that are data; importable without torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from windlass.core.clock import SystemClock
from windlass.core.errors import UsageError
from windlass.train.reference import load_reference

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.post.rollout.engine import RolloutEngine
    from windlass.train.model.config import ModelConfig

__all__ = ["build_engine"]


def build_engine(name: str, settings: Mapping[str, Any]) -> RolloutEngine:
    """Return an engine.

    Args:
        name: `embedded`, `transformers`, `http`, `vllm`, `fake`, or `module:function`, which gets the settings as keyword
            arguments.
        settings: `model` (as `to_data` writes a ModelConfig), `tokenizer` (the same of a TokenizerConfig), `num_slots`,
            `max_length`, `device`, and the engine's own arguments. `fake`: arguments of FakeEngine and constants of its Script.

    Raises:
        NotFoundError: there is no such function.
        UsageError: the engine has no such setting, or lacks one.
        PreconditionError: a package is not installed (`extra-missing`).
        EngineError: a server does not answer.
    """
    if ":" in name:
        return _call(name, cast("Callable[..., Any]", load_reference(name)), settings)  # type: ignore[no-any-return]
    return _ENGINES[name](name, dict(settings))


def _call(name: str, build: Callable[..., Any], settings: Mapping[str, Any], *values: object) -> Any:
    try:
        inspect.signature(build).bind(*values, **settings)
    except TypeError as error:
        hint = "`rollout.engine.settings` are keyword arguments of the engine"
        raise UsageError(f"invalid settings of engine `{name}`: {error}", hint=hint, code="invalid-value") from error
    return build(*values, **settings)


def _embedded(name: str, settings: dict[str, Any]) -> RolloutEngine:
    from windlass.post.rollout.embedded import EmbeddedEngine  # lazy: torch

    model = _with_objects(settings)
    return _call(name, EmbeddedEngine, settings, model, None)  # type: ignore[no-any-return]


def _transformers(name: str, settings: dict[str, Any]) -> RolloutEngine:
    from windlass.post.rollout.transformers import TransformersEngine  # lazy: torch

    model = _with_objects(settings)
    return _call(name, TransformersEngine, settings, model, None)  # type: ignore[no-any-return]


def _http(name: str, settings: dict[str, Any]) -> RolloutEngine:
    from windlass.post.rollout.http import HttpEngine  # lazy: not for the other engines

    model = _model(settings)
    for each in ("tokenizer", "device"):  # the server's own
        settings.pop(each, None)
    export = _export(model, settings.pop("dtype", "bfloat16"))
    return _call(name, HttpEngine, {"vocab_size": model.vocab_size, "export": export, **settings})  # type: ignore[no-any-return]


def _vllm(name: str, settings: dict[str, Any]) -> RolloutEngine:
    from windlass.post.rollout.vllm import VllmEngine  # lazy: not for the other engines

    dtype = settings.setdefault("dtype", "bfloat16")
    model = _with_objects(settings)
    settings["dtype"] = dtype
    return _call(name, VllmEngine, {"export": _export(model, dtype), **settings}, model)  # type: ignore[no-any-return]


def _model(settings: dict[str, Any]) -> ModelConfig:
    from windlass.config.loading import from_data  # lazy: not for user's engines
    from windlass.train.model.config import ModelConfig

    return from_data(ModelConfig, settings.pop("model"))


def _export(model: ModelConfig, dtype: Any) -> Callable[[Mapping[str, Tensor], Path], None]:
    """Return what writes weights as Hugging Face's files."""

    def export(weights: Mapping[str, Tensor], folder: Path) -> None:
        from windlass.train.hf.convert_weights import export_model  # lazy: torch

        export_model(model, _InMemory(weights), folder, dtype=dtype, overwrite=True)

    return export


@dataclass(frozen=True, slots=True)
class _InMemory:
    """Weights in memory as the writer of Hugging Face's files reads them."""

    weights: Mapping[str, Tensor]

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(weight.shape) for name, weight in self.weights.items()}

    def tensor(self, name: str) -> Tensor:
        return self.weights[name].detach().cpu()


def _with_objects(settings: dict[str, Any]) -> ModelConfig:
    """Replace data by the objects that engines in this process take; return the model's settings."""
    import torch  # lazy: not for engines of servers

    from windlass.config.loading import from_data
    from windlass.train.data.config import TokenizerConfig
    from windlass.train.data.tokenizer import load_tokenizer

    model, tokenizer = _model(settings), settings.pop("tokenizer", None)
    if tokenizer is not None:
        settings["decode"] = load_tokenizer(from_data(TokenizerConfig, tokenizer)).decode
    if "dtype" in settings:
        settings["dtype"] = getattr(torch, settings["dtype"])
    return model


def _fake(name: str, settings: dict[str, Any]) -> RolloutEngine:
    from windlass.post.rollout.fake import FakeEngine, Script  # lazy: for tests and measurements alone

    token_s, num_tokens = settings.pop("seconds_per_token", 0.01), settings.pop("num_tokens", None)
    delay_s, load_s = settings.pop("delay_s", 0.0), settings.pop("load_s", 0.0)
    script = Script(
        num_tokens=lambda request: num_tokens,
        seconds_per_token=lambda request: token_s,
        delay_s=lambda request: delay_s,
        load_s=load_s,
    )
    return _call(name, FakeEngine, settings, SystemClock(), script)  # type: ignore[no-any-return]


_ENGINES: Mapping[str, Callable[[str, dict[str, Any]], RolloutEngine]] = {
    "embedded": _embedded,
    "transformers": _transformers,
    "http": _http,
    "vllm": _vllm,
    "fake": _fake,
}
