"""Dataclasses that are cheap to define.

`dataclasses.dataclass` compiles up to ten methods from source text when a class is defined: 0.4 to 0.9 ms a class, about
half of the time of importing windlass. `dataclass` here takes the same arguments and creates the same class: fields, slots
and checks are the standard library's, `__init__` is compiled when it is first looked up, and the other methods are
closures. `InitVar` is not supported: use the standard decorator for such a class.

Source: docs/decisions/0020-dataclasses-compiled-on-first-use.md
"""

from __future__ import annotations

import dataclasses
import operator
from _thread import get_ident
from typing import TYPE_CHECKING, Any, Callable

__all__ = ["dataclass"]

_ORDER = {"__lt__": operator.lt, "__le__": operator.le, "__gt__": operator.gt, "__ge__": operator.ge}
_standard: Any = dataclasses.dataclass
_OWN = ("init", "repr", "eq", "order", "frozen")


class _Factory:
    """Default value for a parameter whose value comes from its field's `default_factory`."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()

if TYPE_CHECKING:
    from dataclasses import dataclass  # a type checker sees the standard decorator
else:

    def dataclass(cls: Any = None, /, **options: Any) -> Any:
        """Create a dataclass like `dataclasses.dataclass`, but compile `__init__` on first use."""
        if cls is None:
            return lambda decorated: _make(decorated, **options)
        return _make(cls, **options)


def _make(
    cls: Any,
    init: bool = True,
    repr: bool = True,  # noqa: A002 - the standard decorator's name
    eq: bool = True,
    order: bool = False,
    frozen: bool = False,
    **options: Any,
) -> Any:
    own = set(cls.__dict__)  # methods of the class body are kept
    if "__eq__" in own and cls.__hash__ is None:
        own.discard("__hash__")  # Python set it because of `__eq__`
    has_base = any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:])
    made = _standard(  # with a base class, the standard library compares `frozen` with that of the base
        **options, **{**dict.fromkeys(_OWN, False), "frozen": frozen and has_base}
    )(cls)
    methods: dict[str, Any] = {}
    if init:
        methods["__init__"] = _UncompiledInit(made, frozen)
    if repr:
        methods["__repr__"] = _repr_method([field.name for field in dataclasses.fields(made) if field.repr])
    if eq:
        methods.update(_comparisons(made, order))
        methods["__hash__"] = _hash_method(made) if frozen else None
    if frozen:
        methods["__setattr__"], methods["__delattr__"] = _frozen_methods(made)
    if frozen and options.get("slots"):
        methods["__getstate__"], methods["__setstate__"] = _getstate, _setstate
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    params = made.__dataclass_params__
    params.init, params.repr, params.eq, params.order, params.frozen = init, repr, eq, order, frozen
    return made


class _UncompiledInit:
    """Descriptor that replaces `__init__`: the first access compiles `__init__` and stores it in the class."""

    def __init__(self, cls: Any, is_frozen: bool) -> None:
        self._cls, self._is_frozen = cls, is_frozen

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method = self._cls.__dict__["__init__"]
        if method is self:
            method = _compile_init(self._cls, self._is_frozen)
            self._cls.__init__ = method
        return method.__get__(instance, owner)


def _compile_init(cls: Any, is_frozen: bool) -> Callable[..., None]:
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": _FACTORY}
    positional: list[str] = ["self"]
    keyword: list[str] = []
    body: list[str] = []
    for number, field in enumerate(dataclasses.fields(cls)):
        name, value, default = field.name, field.name, ""
        if field.default is not dataclasses.MISSING:
            names[f"_{number}"], default = field.default, f"=_{number}"
            value = name if field.init else f"_{number}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_{number}"], default = field.default_factory, "=_missing"
            value = f"_{number}() if {name} is _missing else {name}" if field.init else f"_{number}()"
        elif not field.init:
            continue  # `__post_init__` sets it
        if field.init:
            is_keyword = getattr(field, "kw_only", False)  # Python 3.9: no such attribute
            (keyword if is_keyword else positional).append(name + default)
        body.append(f" _set(self, {name!r}, {value})" if is_frozen else f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    parameters = ", ".join([*positional, "*", *keyword] if keyword else positional)
    made: dict[str, Any] = {}
    exec(f"def __init__({parameters}):\n" + ("\n".join(body) or " pass"), names, made)  # noqa: S102 - as dataclasses does
    method = made["__init__"]
    method.__qualname__, method.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    method.__annotations__ = {field.name: field.type for field in dataclasses.fields(cls) if field.init}
    method.__annotations__["return"] = None
    return method  # type: ignore[no-any-return]


def _repr_method(names: list[str]) -> Callable[[Any], str]:
    running: set[tuple[int, int]] = set()

    def __repr__(self: Any) -> str:  # noqa: N807
        key = id(self), get_ident()
        if key in running:
            return "..."
        running.add(key)
        try:
            fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        finally:
            running.discard(key)
        return f"{type(self).__qualname__}({fields})"

    return __repr__


def _comparisons(cls: Any, has_order: bool) -> dict[str, Any]:
    values = _values_of([field.name for field in dataclasses.fields(cls) if field.compare])

    def compare_by(relation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def compare(self: Any, other: Any) -> Any:
            return relation(values(self), values(other)) if other.__class__ is self.__class__ else NotImplemented

        return compare

    relations = {"__eq__": operator.eq, **(_ORDER if has_order else {})}
    return {name: compare_by(relation) for name, relation in relations.items()}


def _hash_method(cls: Any) -> Callable[[Any], int]:
    values = _values_of([f.name for f in dataclasses.fields(cls) if (f.compare if f.hash is None else f.hash)])

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    return __hash__


def _values_of(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _frozen_methods(cls: Any) -> tuple[Any, Any]:
    names = frozenset(field.name for field in dataclasses.fields(cls))

    def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


def _getstate(self: Any) -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state):
        object.__setattr__(self, field.name, value)
