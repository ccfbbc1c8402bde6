"""Merge patches (RFC 7386) for JSON data, with two extensions.

`{"$literal": VALUE}` sets exactly that value, so `{"$literal": null}` sets null. Two lists whose items are mappings with
a `name` or a `mountPath` are merged item by item; any other list replaces the old value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["LITERAL", "is_literal", "merge", "patch_between", "same"]

LITERAL = "$literal"
_KEYS = ("name", "mountPath")
_ABSENT = object()


def merge(base: Any, patch: Any) -> Any:
    """Return `base` with `patch` applied; neither is changed.

    In two lists with names, items of the patch are merged into items with the same name, and new items are appended.
    If the patch names all items of the base, the result has the order of the patch.
    """
    if is_literal(patch):
        return patch[LITERAL]
    if isinstance(patch, Mapping):
        merged = dict(base) if isinstance(base, Mapping) else {}
        for key, value in patch.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = merge(merged.get(key), value)
        return merged
    if isinstance(patch, list) and isinstance(base, list):
        key = _key_of(base, patch)
        return _merged_items(base, patch, key) if key else patch
    return patch


def patch_between(base: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the smallest patch that turns `base` into `wanted`, so that `merge(base, patch)` equals `wanted`."""
    patch = _patch(base, wanted)
    assert isinstance(patch, dict)  # between two mappings
    return patch


def is_literal(patch: Any) -> bool:
    """Return whether a patch is `{"$literal": VALUE}`."""
    return isinstance(patch, Mapping) and len(patch) == 1 and LITERAL in patch


def same(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal; `true` does not equal 1, but 4 equals 4.0."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second) or (first != first and second != second)  # noqa: PLR0124 - NaN equals NaN


def _patch(base: Any, wanted: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(wanted, Mapping) and LITERAL not in wanted:
        patch: dict[str, Any] = {}
        for key, value in wanted.items():
            before = base.get(key, _ABSENT)
            if before is _ABSENT or not same(before, value):
                patch[key] = _patch(before, value)
        patch.update({key: None for key in base if key not in wanted})
        return {LITERAL: wanted} if is_literal(patch) else patch  # else read as a literal
    if isinstance(base, list) and isinstance(wanted, list):
        return _patch_items(base, wanted)
    return _exactly(wanted)


def _exactly(wanted: Any) -> Any:
    """Return a patch that produces this value from anything but a mapping."""
    if wanted is None or (isinstance(wanted, Mapping) and LITERAL in wanted):
        return {LITERAL: wanted}
    if isinstance(wanted, Mapping):
        return {key: _exactly(value) for key, value in wanted.items()}
    return wanted


def _key_of(*lists: Sequence[Any]) -> str:
    """Return the key that identifies the items in all these lists; empty if there is none."""
    return next((key for key in _KEYS if all(_is_keyed(items, key) for items in lists)), "")


def _is_keyed(items: Sequence[Any], key: str) -> bool:
    names = [item.get(key) for item in items if isinstance(item, Mapping)]
    return len(names) == len(items) == len({name for name in names if isinstance(name, str)})


def _merged_items(base: Sequence[Any], patch: Sequence[Any], key: str) -> list[Any]:
    old, new = {item[key]: item for item in base}, {item[key]: item for item in patch}
    order = new if old.keys() <= new.keys() else {**old, **new}
    return [merge(old.get(name), new[name]) if name in new else old[name] for name in order]


def _patch_items(base: Sequence[Any], wanted: Sequence[Any]) -> Any:
    key = _key_of(base, wanted)
    old = {item[key]: item for item in base} if key else {}
    if not key or any(name not in {item[key] for item in wanted} for name in old):
        return wanted if _replaces(base, wanted) else {LITERAL: wanted}
    items = [{key: item[key], **_patch(old.get(item[key], {}), item)} for item in wanted]
    changed = [patch for patch, item in zip(items, wanted) if not same(old.get(item[key]), item)]
    for patch in (changed, items):
        if same(merge(base, patch), wanted):
            return patch
    return {LITERAL: wanted}


def _replaces(base: Sequence[Any], wanted: Sequence[Any]) -> bool:
    return same(merge(base, wanted), wanted)
