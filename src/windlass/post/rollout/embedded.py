"""Engine in this process: continuous batching over a fixed number of slots, with the decoder that is trained.

A step computes one token for the first slots, also for empty ones among them: samples join free slots and leave when they
end, and as many slots are computed as hold the open ones, in sizes that give the same bits as all slots (`StepSizes`). With
a forward per prompt whose shape depends only on the prompt's length, a sample on one thread of a CPU is the same to the
last bit whatever else is generated, in any order, alone or in its group. Engines with different numbers of slots may
differ in the last bits.

Legend: B slots, N samples that join, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from windlass.core.clock import SystemClock
from windlass.core.errors import UsageError
from windlass.post.rollout.engine import EngineError, EngineFacts, Lendable, OpenWork
from windlass.post.rollout.prefill import Prefill, ReadPrompts
from windlass.post.rollout.row import OpenRow, cancelled_sample
from windlass.post.rollout.sampling import Chosen, SamplingRows, choose, uniforms
from windlass.post.rollout.slots import SlotCache, allocate_again, free_memory
from windlass.post.rollout.steps import StepSizes, have_equal_slots
from windlass.post.rollout.stops import Decode, StopTexts, TextPieces
from windlass.post.rollout.waiting import WaitingWork, check_request, check_work
from windlass.train.model.decoder import Decoder

if TYPE_CHECKING:
    from windlass.core.clock import Clock
    from windlass.post.rollout.types import Finish, Sample, SampleId, SampleRequest, ScoreRequest
    from windlass.train.model.config import ModelConfig

__all__ = ["EmbeddedEngine"]


class EmbeddedEngine:
    """Continues prompts with a copy of the policy's weights."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor] | None,
        *,
        version: int = 0,
        num_slots: int = 64,
        max_length: int | None = None,
        max_open: int | None = None,
        prefill_tokens: int = 256,
        decode: Decode | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        clock: Clock | None = None,
    ) -> None:
        """Allocate slots and load weights.

        Args:
            weights: parameters by name; None: random ones, to be replaced by `load` or `refill`.
            num_slots: samples that are generated at the same time; at least 2, because a product with a single row is
                summed in another order.
            max_length: tokens of a prompt and its continuation; None: the model's maximum.
            max_open: samples taken at the same time, waiting ones included; None: four times the slots.
            prefill_tokens: tokens of a forward that reads prompts.
            decode: text of token ids; needed for stop texts.

        Raises:
            UsageError: `num_slots` is below 2, or `max_length` exceeds the model's.
            EngineError: the weights belong to another model.
        """
        max_length = config.max_length if max_length is None else max_length
        if num_slots < 2 or not 2 <= max_length <= config.max_length:
            raise UsageError(
                f"an engine of {num_slots} slots of {max_length} tokens is not possible",
                hint=f"use at least 2 slots, and 2 to {config.max_length} tokens",
                code="invalid-value",
            )
        self._device, self._clock = torch.device(device), clock or SystemClock()
        with torch.device(self._device):
            self._model = Decoder(config).to(dtype).eval().requires_grad_(requires_grad=False)
        self._facts = EngineFacts(
            name="embedded",
            num_slots=num_slots,
            max_length=max_length,
            max_open=max_open or 4 * num_slots,
            vocab_size=config.vocab_size,
            has_stop_texts=decode is not None,
            has_raw_logp=True,
            # elsewhere kernels choose the order of sums by load, several threads divide rows between them, and experts
            # compute as many rows as are routed to them
            is_deterministic=self._device.type == "cpu"
            and torch.get_num_threads() == 1
            and config.moe is None
            and have_equal_slots(self._model, num_slots),
            has_in_flight_update=True,
        )
        self._pieces = TextPieces(decode) if decode is not None else None
        self._prefill = Prefill(self._model, num_tokens=prefill_tokens)
        self._slots = SlotCache(config, num_slots=num_slots, max_length=max_length, device=self._device, dtype=dtype)
        self._sizes = StepSizes(self._model, num_slots, is_checked=self._facts.is_deterministic)
        self._waiting = WaitingWork()
        self._prompts: dict[tuple[int, ...], tuple[ReadPrompts, int]] = {}
        self._rows: list[OpenRow | None] = [None] * num_slots
        self._last_B = torch.zeros(num_slots, dtype=torch.int64, device=self._device)
        self._done: list[Sample] = []
        self._version = version
        self._lent: frozenset[Lendable] = frozenset()
        self._set_rows(num_slots)
        if weights is not None:
            self.load(weights, version)

    @property
    def facts(self) -> EngineFacts:
        """Return what this engine can do."""
        return self._facts

    def version(self) -> int:
        """Return the version of the loaded weights."""
        return self._version

    def submit(self, work: Sequence[SampleRequest]) -> int:
        """Take work from the front of the list and return how many; see `RolloutEngine.submit`."""
        open_rows = {row.work.id: row for row in self._rows if row is not None}
        taken = work[: max(0, self._facts.max_open - len(open_rows) - len(self._waiting))]
        check_work(
            work,
            vocab_size=self._facts.vocab_size,
            max_length=self._facts.max_length,
            open_ids={*open_rows, *(item.id for item in work if item.id in self._waiting)},
            can_decode=self._pieces is not None,
        )
        now_s = self._clock.monotonic()
        for item in taken:
            self._waiting.add(item, now_s)
        return len(taken)

    def poll(self, timeout_s: float) -> Sequence[Sample]:
        """Compute until a sample ends, `timeout_s` passed or nothing can be continued; at least one step."""
        self._check_memory()
        deadline_s = self._clock.monotonic() + timeout_s
        with torch.inference_mode():
            while not self._done and self._step() and self._clock.monotonic() < deadline_s:
                pass
        done, self._done = self._done, []
        return done

    def cancel(self, ids: Collection[SampleId]) -> None:
        """End open samples; `poll` returns what they have so far."""
        now_s, wanted = self._clock.monotonic(), set(ids)
        for slot, row in enumerate(self._rows):
            if row is not None and row.work.id in wanted:
                self._leave(slot, row, "cancelled", now_s)
        for sample in [sample for sample in ids if sample in self._waiting]:
            work, submitted_s = self._waiting.remove(sample)
            self._done.append(cancelled_sample(work, now_s - submitted_s))
        self._forget_prompts()

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[tuple[float, ...]]:
        """Return the log-probabilities of given tokens under the model's own distribution."""
        self._check_memory()
        for request in requests:
            check_request(request, vocab_size=self._facts.vocab_size, max_length=self._facts.max_length)
        with torch.inference_mode():
            return self._prefill.score(requests)

    def load(self, weights: Mapping[str, Tensor], version: int, *, open_work: OpenWork = "recompute") -> None:
        """Copy weights, all or none, and give them a version; see `RolloutEngine.load`."""
        _check_weights(dict(self._model.named_parameters()), weights)

        def copy(own: Mapping[str, Tensor]) -> None:
            for name, parameter in own.items():
                parameter.copy_(weights[name])

        self.refill(copy, version, open_work=open_work)

    def refill(
        self, fill: Callable[[Mapping[str, Tensor]], None], version: int, *, open_work: OpenWork = "recompute"
    ) -> None:
        """Let `fill` overwrite the weights, and give them a version; see `RefillableEngine.refill`."""
        self._check_memory(for_load=True)
        with torch.no_grad():
            fill(dict(self._model.named_parameters()))
        self._version, self._lent = version, frozenset()
        self._prompts.clear()
        for row in self._rows:
            if row is not None:
                row.mark_load(version, is_cache_kept=open_work == "keep")
        if open_work == "recompute":
            with torch.inference_mode():
                self._read_again()

    def lend(self, what: Lendable) -> None:
        """Free the slots, and with `weights` the copy of the weights too; see `LendingEngine.lend`."""
        if self._waiting or any(row is not None for row in self._rows):
            num_open = len(self._waiting) + sum(row is not None for row in self._rows)
            hint = "poll until they are finished, or cancel them"
            raise UsageError(f"cannot free the memory of {num_open} samples in progress", hint=hint, code="in-use")
        self._prompts.clear()
        free_memory(self._slots.tensors())
        if what == "weights":
            free_memory(self._model.parameters())
        self._lent |= {"cache", what}

    def take_back(self) -> None:
        """Allocate what was lent; lent weights must be loaded then; see `LendingEngine.take_back`."""
        if "cache" in self._lent:
            self._slots.take_back()
            allocate_again(self._model.parameters())
            self._lent -= {"cache"}

    def close(self) -> None:
        """Free the slots and drop open work."""
        self._waiting.clear()
        self._prompts.clear()
        self._done = []
        self._rows = [None] * len(self._rows)
        self._slots.free()

    def _check_memory(self, *, for_load: bool = False) -> None:
        """Raise EngineError if memory is lent, or if lent weights have not been loaded again."""
        if "cache" in self._lent or (self._lent and not for_load):
            hint = "call `take_back`" if "cache" in self._lent else "call `load`"
            raise EngineError("the engine's memory is lent, or its weights are not loaded again", hint=hint)

    # ------------------------------------------------------------------------------------------------------- a step

    def _step(self) -> bool:
        """Let samples join, then compute a token for each one; returns whether anything was done."""
        has_joined = self._join()
        open_slots = [slot for slot, row in enumerate(self._rows) if row is not None]
        if not open_slots:
            return has_joined
        num_rows = self._sizes.fit(len(open_slots))
        moved = [slot for slot in open_slots if slot >= num_rows]
        if moved:
            self._move(moved)
        if moved or has_joined or num_rows != self._num_rows:
            self._set_rows(num_rows)
        rows = self._rows[:num_rows]
        self._slots.begin([int(row is not None) for row in rows], 1)
        logits_B1V = self._model(self._last_B[:num_rows, None], cache=self._slots)
        assert isinstance(logits_B1V, Tensor)
        chosen_B = self._chosen(list(enumerate(rows)), logits_B1V[:, 0], self._settings, self._keys_B)
        self._last_B[:num_rows] = chosen_B
        return True

    def _move(self, moved: Sequence[int]) -> None:
        """Move samples to the first free slots."""
        free = [slot for slot, row in enumerate(self._rows) if row is None]
        pairs = list(zip(moved, free, strict=False))
        self._slots.move(pairs)
        for slot, other in pairs:
            self._rows[other], self._rows[slot] = self._rows[slot], None
        self._last_B[[other for _, other in pairs]] = self._last_B[[slot for slot, _ in pairs]]

    def _join(self) -> bool:
        """Fill free slots and choose the first tokens of the samples in them; returns whether any joined."""
        num_joined = 0
        while free := [slot for slot, row in enumerate(self._rows) if row is None]:
            works = self._waiting.startable(self._version, len(free))
            if not works:
                break
            joined = list(zip(free, works, strict=False))
            self._read_prompts([work.read_ids for work in works])
            logits_NV = self._fork(joined)
            rows = [(slot, self._open(slot, work)) for slot, work in joined]
            num_joined += len(rows)
            settings = SamplingRows.of([work.sampling for work in works], self._facts.vocab_size, self._device)
            keys_N = torch.tensor([row.key for _, row in rows], device=self._device)
            self._last_B[[slot for slot, _ in rows]] = self._chosen(rows, logits_NV, settings, keys_N)
            self._forget_prompts()
        return num_joined > 0

    def _chosen(
        self, rows: Sequence[tuple[int, OpenRow | None]], logits_BV: Tensor, settings: SamplingRows, keys_B: Tensor
    ) -> Tensor:
        """Choose the next token of each row, and let samples that end with it leave."""
        positions = [0 if row is None else row.position for _, row in rows]
        positions_B = torch.tensor(positions, device=self._device)
        chosen: Chosen = choose(logits_BV, settings, uniforms(keys_B, positions_B))
        tokens, logp, raw_logp = chosen.tokens_B.tolist(), chosen.logp_B.tolist(), chosen.raw_logp_B.tolist()
        now_s = self._clock.monotonic()
        for index, (slot, row) in enumerate(rows):
            finish = None if row is None else row.add(tokens[index], logp[index], raw_logp[index])
            if row is not None and finish is not None:
                self._leave(slot, row, finish, now_s)
        return chosen.tokens_B

    def _open(self, slot: int, work: SampleRequest) -> OpenRow:
        _, submitted_s = self._waiting.remove(work.id)
        texts = work.sampling.stop_texts
        row = OpenRow(
            work,
            version=self._version,
            submitted_s=submitted_s,
            started_s=self._clock.monotonic(),
            stops=StopTexts(texts, self._pieces) if texts and self._pieces is not None else None,
        )
        self._rows[slot] = row
        return row

    def _leave(self, slot: int, row: OpenRow, finish: Finish, now_s: float) -> None:
        self._done.append(row.sample(finish, now_s))
        self._rows[slot] = None
        self._slots.reset([slot])

    def _set_rows(self, num_rows: int) -> None:
        """Set the settings and keys of sampling of the first slots; those of rows that leave stay and are not read."""
        rows = self._rows[:num_rows]
        settings = [None if row is None else row.work.sampling for row in rows]
        self._num_rows, self._settings = num_rows, SamplingRows.of(settings, self._facts.vocab_size, self._device)
        self._keys_B = torch.tensor([0 if row is None else row.key for row in rows], device=self._device)

    # ------------------------------------------------------------------------------------------------------- prompts

    def _read_prompts(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Read prompts that are not read yet; fills their forwards with prompts that come next."""
        missing = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._prompts]
        if not missing:
            return
        needed = set(missing)
        by_width: dict[int, list[tuple[int, ...]]] = {self._prefill.width(len(prompt)): [] for prompt in missing}
        for prompt in [*missing, *self._waiting.prompts(self._version)]:
            width = self._prefill.width(len(prompt))
            if prompt in needed or (width in by_width and prompt not in self._prompts):
                by_width[width].append(prompt)
        for width, candidates in by_width.items():
            num_rows = self._prefill.num_rows(width)
            unique = list(dict.fromkeys(candidates))
            num_needed = sum(prompt in needed for prompt in unique)
            for first in range(0, num_needed, num_rows):
                chosen = unique[first : first + num_rows]
                read = self._prefill.read(chosen)
                self._prompts.update({prompt: (read, index) for index, prompt in enumerate(chosen)})

    def _fork(self, joined: Sequence[tuple[int, SampleRequest]]) -> Tensor:
        """Copy the prompts' keys and values into slots; returns the logits that follow, (N, V)."""
        logits_V: list[Tensor] = []
        by_read: dict[int, tuple[ReadPrompts, list[tuple[int, int]]]] = {}
        for slot, work in joined:
            read, index = self._prompts[work.read_ids]
            logits_V.append(read.logits_PV[index])
            by_read.setdefault(id(read), (read, []))[1].append((index, slot))
        for read, pairs in by_read.values():
            self._slots.fork(read.cache, pairs, min(read.width, self._slots.max_length))
        return torch.stack(logits_V)

    def _forget_prompts(self) -> None:
        """Drop prompts that no waiting sample has; samples in slots have their own copy."""
        for prompt in [prompt for prompt in self._prompts if not self._waiting.has_prompt(prompt)]:
            del self._prompts[prompt]

    def _read_again(self) -> None:
        """Compute the keys and values of samples in progress with the loaded weights."""
        by_width: dict[int, list[tuple[int, OpenRow]]] = {}
        for slot, row in enumerate(self._rows):
            if row is not None:
                by_width.setdefault(self._prefill.width(len(row.read_ids())), []).append((slot, row))
        for width, members in by_width.items():
            num_rows = self._prefill.num_rows(width)
            for first in range(0, len(members), num_rows):
                part = members[first : first + num_rows]
                read = self._prefill.read([row.read_ids() for _, row in part])
                pairs = [(index, slot) for index, (slot, _) in enumerate(part)]
                self._slots.fork(read.cache, pairs, min(read.width, self._slots.max_length))


def _check_weights(parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    missing, unexpected = sorted(parameters.keys() - weights), sorted(weights.keys() - parameters)
    if missing or unexpected:
        what = f"have no `{missing[0]}`" if missing else f"have `{unexpected[0]}`, which the model has not"
        raise EngineError(
            f"weights {what}; the previous ones stay loaded", hint="load the weights of the model that the engine runs"
        )
    for name, parameter in parameters.items():
        if weights[name].shape != parameter.shape:
            found, own = list(weights[name].shape), list(parameter.shape)
            raise EngineError(
                f"weight `{name}` has shape {found}, and the model's is {own}; the previous weights stay loaded",
                hint="load the weights of the model that the engine runs",
            )
