from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from tests.runs.journals import RunScript, home_in
from windlass.record import events
from windlass.record.state import End, RunFacts
from windlass.runs.provenance.graph import (
    NodeKind,
    ProvenanceEdge,
    ProvenanceGraph,
    ProvenanceNode,
    graph_of,
    provenance_graph,
)
from windlass.runs.provenance.mermaid import mermaid
from windlass.runs.provenance.svg import svg

NASTY = '</text><script>"x" & \x1b[31m\x00 `${a}` [b] end'
PLAN: dict[str, object] = {
    "plan_hash": "p" * 64,
    "experiment": {
        "params": {"lr": 0.1},
        "data": {"tokens": {"from": "text", "build": "python prep.py ${data.text}"}, "text": "file:a"},
    },
    "pins": {
        "code": {"kind": "commit", "commit": "c" * 40, "tree": "t" * 40, "branch": "main"},
        "environment": {"kind": "uv", "lock_file": "uv.lock", "lock_sha256": "l" * 64, "python_version": "3.12.1"},
        "image": {"kind": "built", "name": "exp/main", "key": "k" * 64, "dockerfile": "Dockerfile",
                  "dockerfile_sha256": "d" * 64, "bases": {"debian:12": "sha256:" + "b" * 64}},
        "data": {"text": {"source": "file:a", "digest": "1" * 64, "size_bytes": 1234, "num_files": 2}},
        "builds": {"tokens": {"key": "2" * 40, "digest": "3" * 64}},
    },
    "site": {"name": "lab", "backend": "slurm"},
    "tasks": [
        {"name": "train", "argv": ["/bin/sh", "-c", NASTY], "is_shell": True, "shape": {"nodes": 2, "gpus": 1}, "settings": {"after": []}},
        {"name": "score", "argv": ["true"], "is_shell": False, "shape": {"nodes": 1, "gpus": 0}, "settings": {"after": ["train"]}},
    ],
}  # fmt: skip


def chain(tmp_path: Path) -> ProvenanceGraph:
    script = RunScript(home_in(tmp_path), "exp-00000000").submit().start()
    for attempt in range(1, 8):
        script.start(attempt)
        facts: dict[str, Any] = {"task": "train", "job": 1, "attempt": attempt, "rank": 0}
        script.job.append(events.PROCESS_STARTED, **facts, process="1:2:x", host="node3")
        script.job.append(
            events.ATTEMPT_ENDED, task="train", job=1, attempt=attempt, epoch=1, end=End("preempted").to_data()
        )
    script.job.append(events.OUTPUTS, task="train", attempt=7, num_files=1, bytes=5, digest="9" * 64)
    run = script.end().close()
    return graph_of(run.id, PLAN, {"environment": {"packages": ["a==1", "b==2"]}}, run.facts())


def test_from_the_commit_to_the_outputs(tmp_path: Path) -> None:
    found = chain(tmp_path)
    nodes = {node.id: node for node in found.nodes}
    edges = {(edge.before, edge.after) for edge in found.edges}
    assert {
        ("code", "image"), ("base.debian:12", "image"), ("code", "environment"), ("source.text", "data.text"),
        ("data.text", "build.tokens"), ("code", "build.tokens"), ("build.tokens", "data.tokens"), ("image", "run"),
        ("data.tokens", "run"), ("parameters", "run"), ("run", "task.train"), ("attempt.train.7", "output.train"),
        ("output.train", "task.score"),
    } <= edges  # fmt: skip
    assert nodes["code"].digest == "tree:" + "t" * 40
    assert nodes["environment"].details == ("Python 3.12.1", "2 packages")
    assert nodes["output.train"].digest == "sha256:" + "9" * 64
    assert nodes["attempt.train.7"].details == ("on node3", "preempted")
    assert nodes["run"].digest.startswith("plan:")
    assert [node.kind for node in found.nodes] == sorted((node.kind for node in found.nodes), key=list(NodeKind).index)
    assert [node.id for node in found.nodes if node.kind is NodeKind.ATTEMPT] == [
        "attempt.train.earlier", "attempt.train.5", "attempt.train.6", "attempt.train.7",
    ]  # fmt: skip


def test_the_picture_is_xml_and_every_text_is_escaped(tmp_path: Path) -> None:
    found = chain(tmp_path)
    text = svg(found)
    root = ET.fromstring(text)
    name = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    assert root.find(f"{name}title").text == "Provenance of exp-00000000"  # type: ignore[union-attr]
    assert len(root.findall(f"{name}g")) == len(found.nodes)
    assert len(root.findall(f"{name}path")) == len(found.edges)
    assert root.find(f".//{name}script") is None
    assert "\x1b" not in text
    assert "prefers-color-scheme: dark" in text
    titles = [group.find(f"{name}title").text for group in root.findall(f"{name}g")]  # type: ignore[union-attr]
    assert any(title and "sha256:" + "9" * 64 in title for title in titles)
    assert svg(found) == text


def test_boxes_of_the_picture_do_not_overlap(tmp_path: Path) -> None:
    root = ET.fromstring(svg(chain(tmp_path)))
    boxes = [
        tuple(float(rect.get(key, "")) for key in ("x", "y", "width", "height"))
        for rect in root.iter("{http://www.w3.org/2000/svg}rect")
    ]
    for number, (x, y, width, height) in enumerate(boxes):
        assert x + width <= float(root.get("width", ""))
        for other in boxes[number + 1 :]:
            is_beside = x + width <= other[0] or other[0] + other[2] <= x
            is_above = y + height <= other[1] or other[1] + other[3] <= y
            assert is_beside or is_above


LINE = re.compile(r'    (?:n\d+\["[A-Za-z0-9 .,:/@=_+()#;<>-]*"\]|n\d+ --> n\d+|accTitle: [A-Za-z0-9 ._-]+)\Z')


def test_the_flowchart_holds_nothing_but_its_own_syntax(tmp_path: Path) -> None:
    found = chain(tmp_path)
    head, *lines = mermaid(found).splitlines()
    assert head == "flowchart LR"
    assert all(LINE.match(line) for line in lines), lines
    assert sum("-->" in line for line in lines) == len(found.edges)
    labels = re.findall(r'\["(.*)"\]', "\n".join(lines))
    assert len(labels) == len(found.nodes)
    assert all(re.fullmatch(r"(?:[^<>]|<br>)*", label) for label in labels)
    assert "#60;" in "".join(labels)


def test_a_run_that_has_next_to_nothing() -> None:
    found = graph_of("exp-00000000", {}, {}, RunFacts())
    assert [node.id for node in found.nodes] == ["run"]
    ET.fromstring(svg(found))
    empty = ProvenanceGraph(run="x", nodes=(), edges=())
    ET.fromstring(svg(empty))


def test_a_long_edge_goes_past_the_layers_between() -> None:
    nodes = tuple(ProvenanceNode(id=name, kind=NodeKind.TASK, title=name) for name in "abcd")
    edges = (ProvenanceEdge("a", "b"), ProvenanceEdge("b", "c"), ProvenanceEdge("c", "d"), ProvenanceEdge("a", "d"))
    root = ET.fromstring(svg(ProvenanceGraph(run="x", nodes=nodes, edges=edges)))
    paths = [path.get("d", "") for path in root.findall("{http://www.w3.org/2000/svg}path")]
    assert sorted(path.count("C") for path in paths) == [1, 1, 1, 3]


def test_evaluation_metrics_follow_from_the_output(tmp_path: Path) -> None:
    run = RunScript(home_in(tmp_path), "exp-00000000").submit().start()
    run.job.append(events.OUTPUTS, task="train", attempt=1, num_files=1, bytes=5, digest="9" * 64)
    facts: dict[str, Any] = {"task": "train", "attempt": 1, "rank": 0}
    run.job.append(events.METRICS, **facts, step=10, values={"eval/pass@1": 0.25, "train/loss": 2.0})
    run.job.append(events.METRICS, **facts, step=20, values={"eval/pass@1": 0.5, "train/loss": 1.0})
    found = provenance_graph(run.close())
    [node] = [node for node in found.nodes if node.kind is NodeKind.METRIC]
    assert (node.title, node.details) == ("eval/pass@1", ("0.5", "at step 20", "reported by train"))
    assert ProvenanceEdge("output.train", node.id) in found.edges


def test_a_run_on_disk(tmp_path: Path) -> None:
    run = RunScript(home_in(tmp_path), "exp-00000000").submit().close()
    assert {node.id for node in provenance_graph(run).nodes} == {"run", "task.train"}
