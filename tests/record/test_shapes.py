from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.record.histories import FIELDS
from windlass.record import events
from windlass.record.frames import Record, decode, encode
from windlass.record.shapes import _FIELDS, is_well_formed
from windlass.record.state import RunFacts, State, fold

_ANYTHING = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)) | st.recursive(
    st.none(), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
)


def test_every_kind_has_a_shape() -> None:
    assert set(_FIELDS) == {getattr(events, name) for name in events.__all__}


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(sorted(FIELDS)))
def test_what_is_written_is_well_formed(data: st.DataObject, kind: str) -> None:
    record = Record(kind, "w", 1, 1.0, data.draw(st.fixed_dictionaries(FIELDS[kind])))
    assert is_well_formed(record)
    assert fold([record]).num_damaged == 0


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(sorted(_FIELDS)))
def test_a_fold_survives_any_fact(data: st.DataObject, kind: str) -> None:
    facts: dict[str, Any] = data.draw(st.fixed_dictionaries(FIELDS[kind]))
    name = data.draw(st.sampled_from(sorted(facts)))
    if data.draw(st.booleans()):
        del facts[name]
    else:
        facts[name] = data.draw(_ANYTHING)
    found = fold([Record(kind, "w", 1, 1.0, facts), Record(events.NOTE, "w", 2, 1.0, {"message": "m"})])
    assert "m" in [note[-1] for note in found.notes]
    assert isinstance(found.state, State)
    for task in found.tasks.values():
        assert isinstance(task.state, State)


def test_damage_is_counted_and_changes_nothing() -> None:
    facts = RunFacts()
    facts.apply(Record(events.JOB_INTENDED, "w", 1, 1.0, {"task": "a", "job": 1}))
    facts.apply(Record(events.TASK_ENDED, "w", 2, 1.0, {"task": "a", "job": 1, "verdict": "running"}))
    assert (facts.num_damaged, facts.tasks) == (2, {})


@pytest.mark.parametrize(("field", "value"), [("kind", ["note"]), ("writer", 1), ("seq", "1")])
def test_a_record_is_damaged_when_its_own_fields_are(field: str, value: object) -> None:
    whole: dict[str, Any] = {"kind": "note", "writer": "w", "seq": 1, "at": 1.0, "data": {"message": "m"}}
    assert decode(encode(Record(**whole))) is not None
    assert decode(encode(Record(**{**whole, field: value}))) is None
