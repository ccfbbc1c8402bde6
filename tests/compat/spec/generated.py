"""Any spec that Beaker takes, with nulls, odd spellings and keys that nobody knows."""

from __future__ import annotations

import string
from typing import Any

from hypothesis import strategies as st

__all__ = ["specs"]

ODD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
WORDS = st.one_of(
    st.sampled_from(
        ["python", "a b", "${x}", "$${x}", "$HOME", "1e-4", "", "yes", "null", "$literal", "line\nline", "#"]
    ),
    ODD,
)
NAMES = st.one_of(
    st.sampled_from(["main", "Train It", "eval", "a.b", "a-b", "-", "task-1", "main-2"]), ODD.filter(bool)
)
VARIABLES = st.one_of(st.sampled_from(["A", "B", "HF_TOKEN", "odd-name", "S"]), ODD.filter(bool))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(allow_nan=False), WORDS, ANY),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(ODD, st.sampled_from(["$literal", "name", "mountPath"])), inner, max_size=3),
        st.lists(st.fixed_dictionaries({"name": ODD}, optional={"x": inner}), max_size=2),
    ),
    max_leaves=6,
)
UNKNOWN = st.dictionaries(st.text(string.ascii_letters, max_size=9).map("x_{}".format), JSON, max_size=2)
DURATIONS = st.one_of(
    st.sampled_from(["1h30m", "90", "10m", "15 min", "1h", "24h", "1500ms", "0.5h", 600_000_000_000, 5400 * 10**9, 1]),
    st.integers(1, 48 * 3600 * 10**9),
)
SIZES = st.one_of(
    st.sampled_from(["2.5GiB", "10.24gb", "1024m", "16GiB", "5 GiB", "100", "16g", "0.5KiB", "0"]),
    st.integers(1, 10**6).map("{}MiB".format),
)


def _object(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Each key, a null in its place, or nothing; and keys that nobody knows."""
    optional = {key: st.one_of(value, value, st.none()) for key, value in keys.items()}
    known = st.fixed_dictionaries({}, optional=optional)
    return st.tuples(known, st.one_of(st.just({}), UNKNOWN)).map(lambda both: {**both[1], **both[0]})


def _with(
    required: dict[str, st.SearchStrategy[Any]], rest: st.SearchStrategy[dict[str, Any]]
) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(st.fixed_dictionaries(required), rest).map(lambda both: {**both[1], **both[0]})


IMAGES = st.one_of(
    *(
        _with({kind: st.sampled_from(["a/b", "beaker:x", "python:3.12", "Dockerfile", " "])}, _object())
        for kind in ("beaker", "docker")
    ),
    st.just({"beaker": None, "docker": "x"}),
)
VALUES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"value": st.one_of(WORDS, st.integers(), st.booleans(), st.floats(allow_nan=False), st.none())}
    ),
    st.fixed_dictionaries({"secret": st.sampled_from(["HF_TOKEN", "me_HF_TOKEN", "odd secret", "S"])}),
    st.just({"value": None, "secret": "S"}),
)
ENV_VARS = st.lists(
    st.tuples(VARIABLES, VALUES, st.one_of(st.just({}), UNKNOWN)).map(
        lambda all_: {**all_[2], "name": all_[0], **all_[1]}
    ),
    max_size=5,
    unique_by=lambda variable: variable["name"],
)


@st.composite
def _datasets(draw: st.DrawFn, others: list[str]) -> list[dict[str, Any]]:
    kinds = ["beaker", "hostPath", "weka", "secret", "volume", *(["result"] if others else [])]
    found = []
    for at in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(kinds))
        value = draw(st.sampled_from(others)) if kind == "result" else draw(st.sampled_from(["oe-x", "01J", "/net"]))
        more = draw(_object(subPath=WORDS)) if draw(st.booleans()) else {}
        found.append({**more, "mountPath": f"/mnt/{at}", "source": {kind: value}})
    return found


@st.composite
def _tasks(draw: st.DrawFn) -> list[dict[str, Any]]:
    names = draw(st.lists(st.one_of(NAMES, st.none()), min_size=1, max_size=3, unique_by=lambda name: name or object()))
    tasks = []
    for at, name in enumerate(names):
        before = [other for other in names[:at] if other]
        rest = _object(
            command=st.lists(st.one_of(WORDS, st.integers(), st.floats(allow_nan=False)), max_size=4)
            | st.sampled_from([["/bin/bash", "-c", "a && b $BEAKER_REPLICA_RANK"], ["/bin/sh", "-c", "x"]]),
            arguments=st.lists(st.one_of(WORDS, st.integers()), max_size=3),
            envVars=ENV_VARS,
            datasets=_datasets(before),
            result=_object(path=st.just("/results")),
            resources=_object(
                cpuCount=st.sampled_from([0, 1, 4.0, 15.5]),
                gpuCount=st.sampled_from([0, 1, 8, 2000]),
                memory=SIZES,
                sharedMemory=SIZES,
            ),
            context=_object(
                cluster=ODD,
                priority=st.sampled_from(["low", "normal", "high", "urgent", "immediate", "preemptible"]),
                preemptible=st.booleans(),
                minRuntime=DURATIONS,
                autoResume=st.booleans(),
            ),
            constraints=_object(cluster=st.lists(ODD, max_size=2) | ODD, hostname=st.lists(ODD, max_size=2) | ODD),
            hostNetworking=st.booleans(),
            replicas=st.sampled_from([1, 2, 4, 20_000]),
            leaderSelection=st.booleans(),
            propagateFailure=st.booleans(),
            propagatePreemption=st.booleans(),
            synchronizedStartTimeout=DURATIONS,
            timeout=DURATIONS,
        )
        named = {} if name is None and draw(st.booleans()) else {"name": st.just(name)}
        tasks.append(draw(_with({**named, "image": IMAGES}, rest)))
    return tasks


def specs() -> st.SearchStrategy[dict[str, Any]]:
    """Specs of the whole schema."""
    rest = _object(
        version=st.sampled_from(["v2", "v2-alpha"]),
        description=WORDS,
        budget=st.sampled_from(["ai2/x", ""]),
        groups=st.lists(WORDS, max_size=2),
        retry=_object(allowedTaskRetries=st.integers(0, 10)),
    )
    return _with({"tasks": _tasks()}, rest)
