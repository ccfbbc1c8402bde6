"""Loader of token rows, whose positions are computed rather than stored.

Legend: N rows of a batch, over all processes.
"""

from __future__ import annotations

import atexit
import json
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from windlass.core.errors import Problem, SpecError
from windlass.core.json_text import decode_json
from windlass.train.batch import Batch
from windlass.train.data.collate import Collator, RowPlace
from windlass.train.data.order import RowOrder
from windlass.train.data.protocol import Share

__all__ = ["BatchShape", "Prefetch", "TokenLoader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """Division of a global batch into rows and microbatches.

    Attributes:
        tokens: tokens per batch, over all processes.
        length: tokens of a row in a batch; a divisor of the full length.
        full_length: tokens of a row as cut from the sources.
        microbatch_tokens: tokens per process in a microbatch; if None, its whole part of the batch.
        is_trimmed: whether rows are cut to the longest of the batch, rounded up to a power of two.
    """

    tokens: int
    length: int
    full_length: int
    microbatch_tokens: int | None = None
    is_trimmed: bool = False

    @property
    def num_full_rows(self) -> int:
        """Number of full rows in a batch."""
        return self.tokens // self.full_length

    @property
    def cuts(self) -> int:
        """Number of rows into which a full row is cut."""
        return self.full_length // self.length

    def rows_step(self, share: Share) -> int:
        """Return the number of rows in one microbatch of one process."""
        rows = self.num_full_rows * self.cuts
        return rows // share.world if self.microbatch_tokens is None else self.microbatch_tokens // self.length

    def rows_of(self, share: Share) -> np.ndarray:
        """Return the indices of a process's rows in a batch, ordered by microbatch."""
        step = self.rows_step(share)
        rows = np.arange(self.num_full_rows * self.cuts).reshape(-1, share.world, step)
        return rows[:, share.rank].reshape(-1)

    def problems(self, share: Share) -> Iterator[Problem]:
        """Yield the problems with dividing a batch of this shape between the processes."""
        for name, tokens, unit in (
            ("data.batch_tokens", self.tokens, self.full_length),
            ("data.microbatch_tokens", self.microbatch_tokens or self.length, self.length),
        ):
            if tokens % unit or not tokens:
                message = f"{name} {tokens} is not a multiple of the {unit} tokens of a row"
                yield Problem(message, "shape-conflict", hint=f"try {max(1, round(tokens / unit)) * unit}")
                return
        if self.full_length % self.length:
            message = f"cannot cut rows of {self.full_length} tokens to {self.length}"
            yield Problem(message, "shape-conflict", hint="choose a divisor of `data.sequence_length`")
            return
        rows, step = self.num_full_rows * self.cuts, self.rows_step(share)
        if step == 0 or rows % (share.world * step):
            message = f"cannot divide a batch of {rows} rows between {share.world} processes"
            message += f" in microbatches of {step} rows" if step else ""
            unit = share.world * max(step, 1) * self.length
            more = max(1, round(self.tokens / unit)) * unit
            yield Problem(message, "shape-conflict", hint=f"try `data.batch_tokens={more}`, or another microbatch")


class TokenLoader:
    """Loader that yields batches of rows, in an order that depends only on seed, epoch and index.

    A batch at the end of an epoch is filled from the next epoch, so no row is lost. The order of rows and their division
    into batches do not depend on the number of processes or on microbatches. Batch size and row length do not change
    the order either: they can be set at any time, and apply from the next batch on.

    Args:
        fingerprint: settings that determine the rows; a state with a different fingerprint is rejected.
        labels: names of its entries in errors.
        prefetch: number of batches that a thread prepares ahead; 0 for none.
        is_lenient: whether to accept a state of different data.
        is_pinned: whether to put batches into page-locked memory, for asynchronous copies to a GPU.

    Attributes:
        wait_s: total seconds that the caller waited for batches.
    """

    def __init__(
        self,
        collator: Collator,
        order: RowOrder,
        shape: BatchShape,
        *,
        share: Share,
        fingerprint: Mapping[str, str],
        labels: Mapping[str, str] | None = None,
        prefetch: int = 2,
        is_lenient: bool = False,
        is_pinned: bool = False,
    ) -> None:
        self.wait_s = 0.0
        self._collator, self._order, self._share = collator, order, share
        self._fingerprint, self._data = dict(fingerprint), json.dumps(dict(fingerprint), sort_keys=True)
        self._prefetch, self._is_lenient = prefetch, is_lenient
        self._is_pinned, self._labels = is_pinned, labels or {}
        self._shape = self._checked(shape)
        self._position = 0  # full rows since the start of epoch 0
        self._version = 0  # a change discards prefetched batches

    @property
    def batches_per_epoch(self) -> int:
        """Number of whole global batches in a pass over the data, at the current batch size."""
        return max(1, self._order.rows_per_epoch // self._shape.num_full_rows)

    @property
    def batches_per_pass(self) -> float:
        """Number of global batches in a pass, including the fraction of a batch at its end."""
        return self._order.rows_per_epoch / self._shape.num_full_rows

    def batches_until(self, epochs: int, state: Mapping[str, int | str]) -> int:
        """Return the number of batches from a position until `epochs` passes are complete, at the current batch size."""
        position = int(state["epoch"]) * self._order.rows_per_epoch + int(state["index"])
        return max(0, -(-(epochs * self._order.rows_per_epoch - position) // self._shape.num_full_rows))

    @property
    def rows_per_epoch(self) -> int:
        """Number of full rows in a pass over the data."""
        return self._order.rows_per_epoch

    @property
    def epoch(self) -> int:
        """Number of passes that are complete."""
        return self._position // self._order.rows_per_epoch

    @property
    def batch_tokens(self) -> int:
        """Number of tokens in a global batch."""
        return self._shape.tokens

    @property
    def length(self) -> int:
        """Tokens per row."""
        return self._shape.length

    def set_batch(self, tokens: int) -> None:
        """Change the tokens per global batch, starting with the next batch.

        Raises SpecError if they are not divisible.
        """
        self._change(replace(self._shape, tokens=tokens))

    def set_length(self, length: int) -> None:
        """Cut rows to `length`, a divisor of the full length, starting with the next batch.

        The number of tokens per batch stays the same.

        Raises:
            SpecError: `length` is not a divisor, or rows already vary in length.
        """
        if self._shape.is_trimmed and length != self._shape.full_length:
            message = f"cannot cut rows to {length} tokens with `data.layout: bucket`"
            raise SpecError([Problem(message, "shape-conflict", hint="use `data.layout: pack` or `chunk`")])
        self._change(replace(self._shape, length=length))

    def state_dict(self) -> Mapping[str, int | str]:
        """Return the position of the next batch (epoch, row index, seed) and a digest of the data."""
        epoch, index = divmod(self._position, self._order.rows_per_epoch)
        return {"epoch": epoch, "index": index, "seed": self._order.seed, "data": self._data}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Restore a position.

        Raises:
            SpecError: the state is of different data (`tokens-changed`); the message names the difference.
        """
        before = decode_json(str(state["data"]))
        changed = [key for key in {**before, **self._fingerprint} if before.get(key) != self._fingerprint.get(key)]
        if changed and not self._is_lenient:
            names = {key: f"`{key}`" + (f" ({self._labels[key]})" if key in self._labels else "") for key in changed}
            now = self._fingerprint
            raise SpecError(_change(names[key], before.get(key), now.get(key)) for key in sorted(changed))
        self._order = self._order.with_seed(int(state["seed"]))
        self._position = int(state["epoch"]) * self._order.rows_per_epoch + int(state["index"])
        self._version += 1

    def __iter__(self) -> Iterator[Batch]:
        """Yield this process's share of each global batch from the current position on, endlessly."""
        while True:
            version = self._version
            made = self._make(self._shape, self._order, self._position)
            ahead = Prefetch(made, depth=self._prefetch) if self._prefetch else None
            try:
                while version == self._version:
                    start = time.perf_counter()
                    batch, position = next(made) if ahead is None else ahead.next()
                    self.wait_s += time.perf_counter() - start
                    self._position = position
                    yield batch
            finally:
                if ahead is not None:
                    ahead.close()

    def _make(self, shape: BatchShape, order: RowOrder, position: int) -> Iterator[tuple[Batch, int]]:
        """Yield batches, each with the position that follows it."""
        mine_N = shape.rows_of(self._share)
        needed_N, place_N = np.unique(mine_N // shape.cuts, return_inverse=True)
        cuts = list(zip(place_N.tolist(), (mine_N % shape.cuts).tolist(), strict=True)) if shape.cuts > 1 else None
        pick_N = needed_N if cuts is not None else mine_N
        while True:
            places = self._places(order, position + (np.arange(shape.num_full_rows) if shape.is_trimmed else pick_N))
            width = shape.length
            if shape.is_trimmed:
                width = self._width(places)
                places = [places[number] for number in pick_N]
            num_rows_step = shape.rows_step(self._share)
            position += shape.num_full_rows
            batch = self._collator.batch(places, width=width, cuts=cuts, num_rows_step=num_rows_step)
            yield batch.pinned() if self._is_pinned else batch, position

    def _places(self, order: RowOrder, position_N: np.ndarray) -> list[RowPlace]:
        """Return the rows at positions counted from the start of the first epoch."""
        epoch_N, index_N = np.divmod(position_N, order.rows_per_epoch)
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        places: list[RowPlace] = []
        for epoch in np.unique(epoch_N).tolist():
            here_N = index_N[epoch_N == epoch]
            found[epoch] = order.rows(epoch, here_N)
            triples = zip(here_N.tolist(), *(array_N.tolist() for array_N in found[epoch]), strict=True)
            places += [RowPlace(index, source, row) for index, source, row in triples]
        return places

    def _width(self, places: list[RowPlace]) -> int:
        """Return the length of the longest of these rows, rounded up to a power of two."""
        tables = self._collator.tables
        longest = max(int(tables[place.source].lengths(np.array([place.row]))[0]) for place in places)
        return min(
            1 << max(1, (longest - 1).bit_length()), self._shape.full_length
        )  # at least two tokens, for one label

    def _change(self, shape: BatchShape) -> None:
        if shape != self._shape:
            self._shape = self._checked(shape)
            self._version += 1

    def _checked(self, shape: BatchShape) -> BatchShape:
        problems = list(shape.problems(self._share))
        if problems:
            raise SpecError(problems)
        return shape


def _change(name: str, before: str | None, now: str | None) -> Problem:
    if now is None:
        message = f"the checkpoint was trained with {name}: {before}; it is missing now"
    elif before is None:
        message = f"the checkpoint was trained without {name}: {now}"
    else:
        message = f"{name} changed since the checkpoint: from {before} to {now}"
    return Problem(
        message,
        "tokens-changed",
        hint="use the checkpoint's data, or set `data.allow_changes=true` to resume at the same row number",
    )


T = TypeVar("T")
_EXIT_WAIT_S = 10.0


class Prefetch(Generic[T]):
    """Iterator that runs another one in a thread, at most `depth` items ahead.

    `next` raises the iterator's errors, in order. `close` stops the thread and waits for it;
    idempotent. At exit without `close`, the thread is stopped first: torch aborts the process if the interpreter kills
    one of its threads.
    """

    def __init__(self, items: Iterator[T], *, depth: int) -> None:
        self._queue: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=depth)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(items,), name="windlass-prefetch", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    def next(self) -> T:
        """Return the next item, blocking until there is one. Raises StopIteration at the end."""
        item, error = self._queue.get()
        if error is not None:
            self.close()
            raise error
        assert item is not None
        return item

    def close(self) -> None:
        """Stop the thread and discard prefetched items."""
        atexit.unregister(self._close_at_exit)
        self._end(float("inf"))

    def _close_at_exit(self) -> None:
        self._end(_EXIT_WAIT_S)

    def _end(self, limit_s: float) -> None:
        self._is_closed.set()
        deadline = time.monotonic() + limit_s
        while self._thread.is_alive() and time.monotonic() < deadline:
            try:
                self._queue.get(timeout=0.01)  # the thread may be waiting for space in the queue
            except queue.Empty:
                continue

    def _run(self, items: Iterator[T]) -> None:
        try:
            for item in items:
                self._queue.put((item, None))
                if self._is_closed.is_set():
                    return
        except BaseException as error:  # noqa: BLE001  (`next` raises it)
            self._queue.put((None, error))
        else:
            self._queue.put((None, StopIteration()))
