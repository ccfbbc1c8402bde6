"""Unions by `kind` where `kind` goes without saying, and what a new kind leaves over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.config import Range
from windlass.config.encode import to_data
from windlass.config.loading import load_config
from windlass.config.value import with_overrides
from windlass.core.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    kind: Literal["slow"] = "slow"
    rate: Annotated[float, Range(min=0)] = 0.5
    inertia: float = 0.25
    nested: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fast:
    kind: Literal["fast"] = "fast"
    rate: Annotated[float, Range(min=0)] = 4.0
    boost: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A union with a default, one without, a mapping and a list of them."""

    drive: Slow | Fast = Slow()
    needed: Slow | Fast
    maybe: Slow | Fast | None = None
    named: Mapping[str, Slow | Fast] = field(default_factory=dict)
    listed: tuple[Slow | Fast, ...] = ()


NEEDED = "needed: {kind: fast}\n"


def read(text: str, *overrides: str) -> Holder:
    return load_config(Holder, NEEDED + text, source="file.yaml", overrides=overrides).value


def refused(text: str, *overrides: str) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as caught:
        read(text, *overrides)
    return [(problem.message, problem.hint) for problem in caught.value.problems]


def test_a_mapping_without_kind_is_of_the_kind_of_the_default() -> None:
    assert read("drive: {rate: 2}\n").drive == Slow(rate=2.0)
    assert read("", "drive.rate=2").drive == Slow(rate=2.0)
    assert read("drive: {rate: 2}\n", "drive.inertia=1").drive == Slow(rate=2.0, inertia=1.0)
    assert read("drive: {}\n").drive == Slow()


def test_a_key_of_another_kind_alone_needs_its_kind() -> None:
    assert refused("drive: {boost: 2}\n") == [("missing key `kind` in drive", "it must be one of slow, fast")]


def test_a_misspelt_key_is_told_among_the_keys_of_the_default() -> None:
    assert refused("drive: {rat: 2}\n") == [("unknown key `rat` in drive", "did you mean `rate`?")]


def test_a_field_without_a_default_needs_its_kind() -> None:
    with pytest.raises(SpecError) as caught:
        load_config(Holder, "needed: {rate: 1}\n", source="file.yaml")
    assert caught.value.message == "missing key `kind` in needed"
    assert ("missing key `kind` in maybe", "it must be one of slow, fast") in refused("maybe: {rate: 1}\n")


def test_a_name_that_is_a_kind_says_it() -> None:
    assert read("named: {fast: {boost: 3}}\n").named == {"fast": Fast(boost=3)}
    assert read("", "named.slow.rate=3").named == {"slow": Slow(rate=3.0)}
    assert read("named: {slow: {kind: fast}}\n").named == {"slow": Fast()}
    assert refused("named: {mine: {rate: 3}}\n")[0][0] == "missing key `kind` in named.mine"


def test_a_new_kind_keeps_what_was_written_and_both_have() -> None:
    assert read("drive: {kind: slow, rate: 2}\n", "drive.kind=fast").drive == Fast(rate=2.0)
    assert read("drive: {rate: 2}\n", "drive.kind=fast", "drive.boost=7").drive == Fast(rate=2.0, boost=7)
    assert read("listed: [{kind: slow}]\n", "listed.0.kind=fast").listed == (Fast(),)


def test_what_was_written_and_the_new_kind_lacks_is_refused() -> None:
    hint = "`inertia` is a key of kind slow; remove it, or write that `kind`"
    assert refused("drive: {inertia: 1}\n", "drive.kind=fast") == [("unknown key `inertia` in drive", hint)]
    assert read("drive: {inertia: 1}\n", "drive.kind=fast", "~drive.inertia").drive == Fast()


def test_an_unknown_kind_is_told_with_the_nearest() -> None:
    assert refused("", "drive.kind=fst") == [
        ("`drive.kind` cannot be the text `fst`", "did you mean `fast`? it must be one of slow, fast")
    ]


def test_a_value_keeps_its_kind_and_gives_its_defaults_up() -> None:
    made = Holder(needed=Fast(), drive=Slow(inertia=9.0))
    assert with_overrides(made, ["drive.rate=1"], source="made").value.drive == Slow(rate=1.0, inertia=9.0)
    with pytest.raises(SpecError, match="unknown key `inertia`"):
        with_overrides(made, ["drive.kind=fast"], source="made")
    yielding = ("default", "made")
    assert with_overrides(made, ["drive.kind=fast"], source="made", yielding=yielding).value.drive == Fast()
    with pytest.raises(SpecError, match="unknown key `inertia`"):
        with_overrides(made, ["drive.inertia=2", "drive.kind=fast"], source="made", yielding=yielding)


def test_origins_tell_the_default_from_what_was_written() -> None:
    loaded = with_overrides(Holder(needed=Fast(boost=2)), ["drive.rate=1"], source="made")
    sources = {path: place.source for path, place in loaded.origins.items()}
    assert sources["needed.boost"] == "made"
    assert sources["needed.rate"] == sources["drive.inertia"] == sources["drive.nested"] == "default"
    assert sources["drive.rate"] == "command line"


def test_a_value_of_the_wrong_type_is_refused_by_its_path() -> None:
    wrong = Holder(needed=Fast(boost="many"))  # type: ignore[arg-type]
    with pytest.raises(SpecError) as caught:
        with_overrides(wrong, ["drive.rate=-1"], source="made")
    assert [problem.message for problem in caught.value.problems] == [
        "`needed.boost` must be a whole number, not the text `many`",
        "`drive.rate` is `-1`, which is out of range",
    ]


KINDS = st.one_of(
    st.builds(
        Slow, rate=st.floats(0, 9), inertia=st.floats(-9, 9), nested=st.lists(st.integers(), max_size=2).map(tuple)
    ),
    st.builds(Fast, rate=st.floats(0, 9), boost=st.integers()),
)
HOLDERS = st.builds(
    Holder,
    drive=KINDS,
    needed=KINDS,
    maybe=st.none() | KINDS,
    named=st.dictionaries(st.sampled_from(["a", "slow", "fast"]), KINDS),
    listed=st.lists(KINDS, max_size=2).map(tuple),
)


@given(HOLDERS)
def test_no_override_changes_nothing(made: Holder) -> None:
    assert with_overrides(made, source="made").value == made


@given(HOLDERS, st.floats(0, 100), st.sampled_from(["slow", "fast"]))
def test_an_override_sets_its_field_and_no_other(made: Holder, rate: float, kind: str) -> None:
    """The kind stays where it is not written; a new one keeps the shared field."""
    changed = with_overrides(
        made, [f"drive.rate={rate!r}", f"needed.kind={kind}"], source="m", yielding=("default", "m")
    )
    found = changed.value
    assert (found.drive.rate, type(found.drive)) == (rate, type(made.drive))
    assert found.needed.kind == kind
    assert {**to_data(found, keep_defaults=True), "drive": 0, "needed": 0} == {
        **to_data(made, keep_defaults=True),
        "drive": 0,
        "needed": 0,
    }
    if made.needed.kind == kind:
        assert found.needed == made.needed
    elif made.needed.rate != type(made.needed)().rate:
        assert found.needed.rate == made.needed.rate
