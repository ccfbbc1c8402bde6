"""Views of clusters: what their machines cost."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster.test_reconcile import Lab
from windlass.cli.render.cluster import view_data, view_lines
from windlass.cluster.machine import Choice, Machine
from windlass.cluster.state import machine_data
from windlass.cluster.view import view_of


def test_the_page_says_what_machines_cost(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.want("up")
    with lab.home.acting() as journal:
        for name, ended_at in (("m1", None), ("m2", time.time())):
            choice = Choice(type="small", price_per_hour=2.0)
            born_at = time.time() - 1800.0
            machine = Machine(
                id=name,
                token=name,
                group="workers",
                state="running" if ended_at is None else "ended",
                choice=choice,
                born_at=born_at,
                ended_at=ended_at,
            )
            journal.append("cluster.node", node=machine_data(machine))
    view = view_of(lab.home, lab.place)
    assert view.cost is not None
    assert "  cost         at most $2.00 so far, $2.00 an hour" in list(view_lines(view))
    assert view_data(view)["cost"]["unknown"] == ()
