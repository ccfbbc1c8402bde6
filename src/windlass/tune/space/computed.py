"""Values computed from other values: `sample_from`, and the configuration as its function sees it."""

from __future__ import annotations

import contextlib
import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from windlass.tune.errors import SpaceError
from windlass.tune.rng import seeded
from windlass.tune.space.domains import Domain, RandomState, bits_from
from windlass.tune.space.values import plain

__all__ = ["Computed", "ConfigView", "ListView"]


class ConfigView(Mapping[str, Any]):
    """Configuration whose values are computed on access, by key or by attribute.

    At the top level, `config` is the configuration itself, for functions such as `lambda spec: spec.config.x`.
    """

    __slots__ = ("_look", "_names", "_top")

    def __init__(self, names: Sequence[Any], look: Callable[[Any], Any], *, is_top: bool = False) -> None:
        self._names = names
        self._look = look
        self._top = is_top

    def __getitem__(self, name: Any) -> Any:
        if name in self._names:
            return self._look(name)
        if name == "config" and self._top:
            return self
        raise KeyError(name)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"the configuration has no `{name}`; it has {', '.join(map(str, self._names))}"
            ) from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"config with {', '.join(map(str, self._names))}"


class ListView(Sequence[Any]):
    """List in a configuration whose entries are computed on access."""

    __slots__ = ("_length", "_look")

    def __init__(self, length: int, look: Callable[[Any], Any]) -> None:
        self._length = length
        self._look = look

    def __getitem__(self, index: Any) -> Any:
        chosen = range(self._length)[index]
        return self._look(chosen) if isinstance(chosen, int) else [self._look(one) for one in chosen]

    def __len__(self) -> int:
        return self._length


class Computed(Domain):
    """Result of a function, or of an expression in `config` (`spec`, `math`, `random` and `np` are defined too)."""

    __slots__ = ("_takes_config", "func")

    def __init__(self, func: Callable[..., Any] | str) -> None:
        if not isinstance(func, str) and not callable(func):
            raise SpaceError(
                f"sample_from needs a function, not {func!r}",
                hint="pass for example lambda config: config['layers'] * 64",
                code="invalid-space",
            )
        self.func = func
        self._takes_config = isinstance(func, str) or _takes_one(func)

    def at(self, bits: int) -> Any:
        return self.compute(ConfigView((), _nothing, is_top=True), bits)

    def sample(self, config: Any = None, size: int = 1, random_state: RandomState = None) -> Any:
        source = random.Random(random_state) if isinstance(random_state, int) else random_state
        config = {} if config is None else config
        drawn = [self.compute(config, bits_from(source)) for _ in range(size)]
        return drawn if size > 1 else drawn[0]

    def compute(self, config: Any, bits: int) -> Any:
        """Call the function with the global generators seeded by `bits` and restored afterwards.

        Raises:
            SpaceError: the function failed; its exception is the cause.
        """
        with seeded(bits):
            return plain(self._answer(config))

    def _answer(self, config: Any) -> Any:
        if not isinstance(self.func, str):
            return self.func(config) if self._takes_config else self.func()
        names: dict[str, Any] = {"config": config, "spec": config, "math": math, "random": random}
        if "np." in self.func:
            import numpy as np  # lazy: only for an expression that names it

            names["np"] = np
        return eval(self.func, names)  # noqa: S307 - the user's own expression, like the trial's command

    def is_valid(self, value: Any) -> bool:
        del value
        return True

    @property
    def name(self) -> str:
        """Name for messages: the text of the expression, or the name and place of the function."""
        if isinstance(self.func, str):
            return self.func
        code = getattr(self.func, "__code__", None)
        place = f" ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})" if code else ""
        return f"{getattr(self.func, '__qualname__', repr(self.func))}{place}"

    def __repr__(self) -> str:
        return f"sample_from({self.name})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Computed) and other.func == self.func

    def __hash__(self) -> int:
        return hash(self.func)


def _takes_one(func: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(func)
    except ValueError:  # a builtin without one
        return True
    for takes_one in (True, False):
        with contextlib.suppress(TypeError):
            signature.bind(*[None] * takes_one)
            return takes_one
    raise SpaceError(
        f"sample_from needs a function of one argument or none, not {func!r}",
        hint="pass for example lambda config: config['layers'] * 64",
        code="invalid-space",
    )


def _nothing(name: Any) -> Any:
    raise KeyError(name)
