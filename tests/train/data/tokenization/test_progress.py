from __future__ import annotations

from windlass.train.data.tokenization.ingestion import IngestProgress


def test_a_line_comes_now_and_then() -> None:
    now, lines = [0.0], list[str]()
    tell = IngestProgress(lines.append, every_s=10.0, now=lambda: now[0])
    for second, done in ((9.0, 1), (10.0, 2), (19.0, 3), (21.0, 4)):
        now[0] = second
        tell(done * 500_000_000, 4_000_000_000)
    assert lines == [
        "tokenizing: 953.7 MiB of 3.7 GiB\n",
        "tokenizing: 1.9 GiB of 3.7 GiB\n",
    ]
