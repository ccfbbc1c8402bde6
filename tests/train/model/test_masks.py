"""Who sees whom, in each of the three forms, and which form is taken."""

from __future__ import annotations

import pytest
import torch

from tests.train.model import tiny
from windlass.train.errors import TrainingError
from windlass.train.model.attention import MaskTable, attend, choose_backend
from windlass.train.model.masks import BlockwiseMask, DenseMask, blockwise_mask, dense_mask, packed_mask

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
DOCUMENTS_BT = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2], [0, 1, 2, 2, 2, 2, 2, 2]], dtype=torch.int32)


def seen_by_definition(window: int | None, documents_BT: torch.Tensor | None, queries: int = 8) -> torch.Tensor:
    rows = 1 if documents_BT is None else len(documents_BT)
    seen = torch.zeros(rows, queries, 8, dtype=torch.bool)
    for row in range(rows):
        for place in range(queries):
            query = 8 - queries + place
            for key in range(query + 1):
                is_near = window is None or query - key < window
                is_own = documents_BT is None or bool(documents_BT[row, query] == documents_BT[row, key])
                seen[row, place, key] = is_near and is_own
    return seen


@pytest.mark.parametrize("window", [None, 1, 3, 8])
@pytest.mark.parametrize("has_documents", [False, True])
@pytest.mark.parametrize("queries", [1, 3, 8])
def test_a_dense_mask_is_its_definition(window: int | None, has_documents: bool, queries: int) -> None:
    documents_BT = DOCUMENTS_BT if has_documents else None
    own = None if documents_BT is None else documents_BT[:, 8 - queries :]
    mask = dense_mask(queries, 8, window, CPU, own, documents_BT)
    expected = seen_by_definition(window, documents_BT, queries)
    if mask.seen_BQS is None:
        assert mask.is_causal or bool(expected.all())
        assert not mask.is_causal or torch.equal(expected[0], torch.ones(8, 8).tril().bool())
    else:
        assert torch.equal(mask.seen_BQS, expected)


def test_what_merely_looks_back_has_no_tensor() -> None:
    assert dense_mask(8, 8, None, CPU) == dense_mask(8, 8, 8, CPU) == DenseMask(is_causal=True)
    assert dense_mask(1, 8, None, CPU) == DenseMask(is_causal=False)


def test_layers_and_batches_of_one_shape_share_a_mask() -> None:
    table = MaskTable(tiny.attention(window=3))
    first = table.take({None, 3}, torch.zeros(2, 8, 4))
    second = table.take({None, 3}, torch.zeros(5, 8, 4))
    assert first[3] is second[3]
    assert first[None] is second[None]
    assert table.take({3}, torch.zeros(2, 9, 4))[3] is not first[3]


def test_few_shapes_are_kept() -> None:
    table = MaskTable(tiny.attention(window=3))
    for length in range(4, 200):
        table.take({3}, torch.zeros(1, length, 4))
    assert table.num_kept <= 16


def test_masks_of_documents_are_not_kept() -> None:
    table = MaskTable(tiny.attention())
    first = table.take({None}, torch.zeros(2, 8, 4), DOCUMENTS_BT)[None]
    other = table.take({None}, torch.zeros(2, 8, 4), DOCUMENTS_BT.flip(0))[None]
    assert isinstance(first, DenseMask)
    assert isinstance(other, DenseMask)
    assert first.seen_BQS is not None
    assert other.seen_BQS is not None
    assert not torch.equal(first.seen_BQS, other.seen_BQS)


def test_packed_bounds_are_ends_of_documents_and_rows() -> None:
    mask = packed_mask(2, 8, 3, CPU, DOCUMENTS_BT)
    assert mask.bounds_N.tolist() == [0, 3, 7, 8, 9, 10, 16]
    assert mask.bounds_N.dtype == torch.int32
    assert packed_mask(2, 8, None, CPU).bounds_N.tolist() == [0, 8, 16]


@pytest.mark.parametrize(
    ("window", "soft_cap", "documents_BT"), [(None, None, DOCUMENTS_BT), (3, 2.0, None)], ids=["documents", "window"]
)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_sees_what_sdpa_sees(
    window: int | None, soft_cap: float | None, documents_BT: torch.Tensor | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 8, 16, generator=generator) for heads in (4, 2, 2))
    dense = dense_mask(8, 8, window, CPU, documents_BT, documents_BT)
    blocks = blockwise_mask(2, 8, window, CPU, documents_BT)
    assert isinstance(blocks, BlockwiseMask)
    made = [attend(q, k, v, mask, scale=0.3, soft_cap=soft_cap) for mask in (dense, blocks)]
    torch.testing.assert_close(made[0], made[1], rtol=1e-5, atol=1e-5)


def test_a_cpu_takes_sdpa_whatever_the_masks() -> None:
    for has_documents in (False, True):
        config = tiny.attention(window=4, soft_cap=3.0)
        assert choose_backend(config, CPU, torch.float32, has_documents=has_documents, has_cache=False) == "sdpa"


def test_a_gpu_takes_the_fastest_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))

    def chosen(
        *, documents: bool = False, dtype: torch.dtype = torch.bfloat16, cache: bool = False, **changes: object
    ) -> str:
        config = tiny.attention(**changes)
        return choose_backend(config, GPU, dtype, has_documents=documents, has_cache=cache)

    assert chosen() == "sdpa"
    assert chosen(documents=True) == chosen(window=4) == "varlen"
    assert chosen(soft_cap=3.0) == chosen(documents=True, dtype=torch.float32) == "flex"
    assert chosen(documents=True, cache=True) == chosen(backend="sdpa", documents=True) == "sdpa"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    assert chosen(documents=True) == "flex"


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("varlen", "attention backend `varlen` needs a GPU, and this is cpu"),
        ("flex", "attention backend `flex` has no gradients on cpu"),
    ],
)
def test_a_backend_that_was_named_is_taken_or_refused(backend: str, message: str) -> None:
    config = tiny.attention(backend=backend)
    with pytest.raises(TrainingError) as caught:
        choose_backend(config, CPU, torch.float32, has_documents=False, has_cache=False)
    assert caught.value.args[0] == message
    assert caught.value.code == "unsupported-setting"


@pytest.mark.parametrize("num_queries", [1, 5])
def test_heads_that_share_keys_need_no_copies_of_them(num_queries: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q_BHTK = torch.randn(3, 6, num_queries, 8, generator=generator, dtype=torch.float64)
    k_BGSK, v_BGSK = torch.randn(2, 3, 2, 9, 8, generator=generator, dtype=torch.float64)
    seen_BQS = torch.rand(3, num_queries, 9, generator=generator) > 0.4
    seen_BQS[:, :, 0] = True
    repeated, grouped = (
        attend(q_BHTK, k_BGSK, v_BGSK, DenseMask(False, seen_BQS, is_grouped=way), scale=0.3, soft_cap=None)
        for way in (False, True)
    )
    torch.testing.assert_close(grouped, repeated, rtol=1e-12, atol=1e-12)
