"""Arithmetic in tokens: `${num_gpus - 2 * nodes}` and `${repeat(2, nodes)}`.

    expression = term (("+" | "-") term)*
    term       = factor (("*" | "//" | "%") factor)*
    factor     = "-" factor | INTEGER | NAME | NAME "(" expression ("," expression)* ")" | "(" expression ")"

Numbers are integers; `//` and `%` round down, as in Python. `repeat(value, count)` is a list, allowed only as a whole
token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from windlass.config.annotations import JsonValue
from windlass.core.names import nearest

__all__ = ["FUNCTIONS", "ExpressionError", "evaluate", "is_expression", "names_in"]

_PIECE = re.compile(r"\s*(\d+|[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*|//|[-+*/%(),])\s*", re.ASCII)
_MAX_LENGTH = 120
_MAX_REPEAT = 10_000
_MAX_NUMBER = 2**63


class ExpressionError(ValueError):
    """Invalid expression; `hint` says what to write instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def is_expression(text: str) -> bool:
    """Return whether a token is an expression, that is, contains an operator or a parenthesis."""
    pieces = _pieces(text)
    is_calculated = any(not _is_operand(piece) for piece in pieces)
    return is_calculated and any(_is_operand(piece) for piece in pieces)


def names_in(text: str) -> tuple[str, ...]:
    """Return the names that an expression uses; empty if it is invalid."""
    pieces = _pieces(text)
    called = [*pieces[1:], ""]
    return tuple(
        piece
        for piece, after in zip(pieces, called, strict=True)
        if _is_operand(piece) and not piece[0].isdigit() and after != "("
    )


def evaluate(text: str, values: Mapping[str, JsonValue]) -> int | tuple[int, ...]:
    """Return the value of an expression. Raises ExpressionError.

    Args:
        values: values of its names; only integers can be used.
    """
    if len(text) > _MAX_LENGTH:
        raise ExpressionError(f"it has more than {_MAX_LENGTH} characters", "calculate in the code of the task")
    reader = _Reader(_pieces(text), values)
    value = reader.expression()
    if reader.next:
        raise ExpressionError(f"`{reader.next}` is unexpected", _GRAMMAR)
    return value


_GRAMMAR = "expressions may contain whole numbers, names, + - * // %, parentheses, repeat, min, max and ceil_div"


def _pieces(text: str) -> tuple[str, ...]:
    """Split an expression into its parts; return an empty tuple if a character is invalid."""
    found, position = [], 0
    while position < len(text):
        match = _PIECE.match(text, position)
        if match is None:
            return ()
        found.append(match.group(1))
        position = match.end()
    return tuple(found)


def _is_operand(piece: str) -> bool:
    return piece[0].isalnum() or piece[0] == "_"


class _Reader:
    """Parser that evaluates an expression from left to right."""

    def __init__(self, pieces: Sequence[str], values: Mapping[str, JsonValue]) -> None:
        self._pieces = pieces
        self._values = values
        self._at = 0

    @property
    def next(self) -> str:
        """Return the next part; empty at the end."""
        return self._pieces[self._at] if self._at < len(self._pieces) else ""

    def expression(self) -> int | tuple[int, ...]:
        """Read a sum or a single value."""
        value = self._term()
        while self.next in ("+", "-"):
            sign = self._take()
            other = _number(self._term())
            value = _checked(_number(value) + other if sign == "+" else _number(value) - other)
        return value

    def _term(self) -> int | tuple[int, ...]:
        value = self._factor()
        while self.next in ("*", "//", "%", "/"):
            operator = self._take()
            if operator == "/":
                raise ExpressionError(
                    "`/` may return a fraction", "write `//`, which rounds down, or `ceil_div(a, b)`, which rounds up"
                )
            value = _checked(_product(operator, _number(value), _number(self._factor())))
        return value

    def _factor(self) -> int | tuple[int, ...]:
        piece = self._take()
        if piece == "-":
            return -_number(self._factor())
        if piece == "(":
            value = self.expression()
            self._expect(")")
            return value
        if piece.isdigit():
            return _checked(int(piece))
        if not _is_operand(piece):
            raise ExpressionError(f"`{piece}` is unexpected", _GRAMMAR)
        return self._call(piece) if self.next == "(" else self._value(piece)

    def _call(self, name: str) -> int | tuple[int, ...]:
        if name not in FUNCTIONS:
            close = nearest(name, FUNCTIONS)
            hint = f"did you mean `{close}`?" if close else f"the functions are: {', '.join(FUNCTIONS)}"
            raise ExpressionError(f"unknown function `{name}`", hint)
        arguments: list[int] = []
        self._expect("(")
        while self.next != ")":
            if arguments:
                self._expect(",")
            arguments.append(_number(self.expression()))
        self._expect(")")
        return FUNCTIONS[name](name, arguments)

    def _value(self, name: str) -> int:
        value = self._values.get(name)
        if name not in self._values:
            numbers = [known for known, held in self._values.items() if _is_whole(held)]
            close = nearest(name, numbers)
            hint = f"did you mean `{close}`?" if close else f"the names are: {', '.join(numbers)}"
            raise ExpressionError(f"unknown name `{name}`", hint)
        if isinstance(value, bool) or not isinstance(value, int):
            message = f"`{name}` is `{value}`, but expressions need whole numbers"
            raise ExpressionError(message, "use the token alone, or calculate in the code of the task")
        return value

    def _take(self) -> str:
        if not self.next:
            raise ExpressionError("the expression ends too early", _GRAMMAR)
        self._at += 1
        return self._pieces[self._at - 1]

    def _expect(self, piece: str) -> None:
        if self.next != piece:
            raise ExpressionError(f"a `{piece}` is missing", _GRAMMAR)
        self._at += 1


def _is_whole(value: JsonValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: int | tuple[int, ...]) -> int:
    if isinstance(value, tuple):
        raise ExpressionError(
            "`repeat` returns a list, which cannot be an operand", "write it alone: ${repeat(2, nodes)}"
        )
    return value


def _checked(value: int) -> int:
    if abs(value) >= _MAX_NUMBER:
        raise ExpressionError("a number in it is too large", "calculate in the code of the task")
    return value


def _product(operator: str, left: int, right: int) -> int:
    if operator == "*":
        return left * right
    if right == 0:
        raise ExpressionError(f"`{operator}` divides by 0", "check the shape and the parameters that it uses")
    return left // right if operator == "//" else left % right


def _repeat(name: str, arguments: Sequence[int]) -> tuple[int, ...]:
    value, count = _two(name, arguments)
    if not 0 <= count <= _MAX_REPEAT:
        raise ExpressionError(f"`repeat` would return {count} numbers", f"use a count from 0 to {_MAX_REPEAT}")
    return (value,) * count


def _ceil_div(name: str, arguments: Sequence[int]) -> int:
    left, right = _two(name, arguments)
    return -_product("//", -left, right)


def _two(name: str, arguments: Sequence[int]) -> tuple[int, int]:
    if len(arguments) != 2:
        raise ExpressionError(f"`{name}` takes 2 numbers, not {len(arguments)}", f"write `{name}(a, b)`")
    return arguments[0], arguments[1]


def _least(name: str, arguments: Sequence[int]) -> int:
    return min(_some(name, arguments))


def _most(name: str, arguments: Sequence[int]) -> int:
    return max(_some(name, arguments))


def _some(name: str, arguments: Sequence[int]) -> Sequence[int]:
    if not arguments:
        raise ExpressionError(f"`{name}` has no arguments", f"write `{name}(a, b)`")
    return arguments


FUNCTIONS: Mapping[str, Callable[[str, Sequence[int]], int | tuple[int, ...]]] = {
    "repeat": _repeat,
    "min": _least,
    "max": _most,
    "ceil_div": _ceil_div,
}
"""Functions for expressions; each gets its name, for messages, and its arguments."""
