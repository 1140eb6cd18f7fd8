"""Exact products: right ones are the same everywhere, and a single wrong bit shows."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("no torch in this Python", allow_module_level=True)

import torch
from burn import integrity
from burn.device import Bench
from sweep import verify

BENCH = Bench(torch, "cpu", 0)
RIGHT = "00100f2530171e80"
"""Of 512 x 256: a fixed pattern has a fixed product, on every machine and every kernel."""


def _product(rows: int = 512) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    one, other = integrity.signs(BENCH, rows, 256, 1), integrity.signs(BENCH, 256, rows, 2)
    return one, other, torch.mm(one, other)


def test_the_product_is_known() -> None:
    """Whole numbers within 256, by int64 arithmetic the same; its digest never changes."""
    one, other, product = _product()
    assert torch.equal(product.long(), one.long() @ other.long())
    assert int(product.abs().max()) <= 256
    assert integrity.wrong_row(BENCH, one, other, product) is None
    assert integrity.digest_of(BENCH, product) == RIGHT


@pytest.mark.parametrize("bit", range(16))
def test_any_single_bit_shows(bit: int) -> None:
    """The proof finds its row, the digest is another, and a comparison its place."""
    one, other, product = _product(64)
    bad = product.clone()
    flipped = bad.view(torch.int16)
    flipped[17, 5] ^= (1 << bit) if bit < 15 else -(1 << 15)
    if not torch.equal(bad, product):  # but for -0, which equals 0
        assert integrity.wrong_row(BENCH, one, other, bad) == 17
        assert integrity.place_of(bad, product) == (17, 5)
    assert integrity.digest_of(BENCH, bad) != integrity.digest_of(BENCH, product)


def test_larger_numbers_stay_exact_in_their_sums() -> None:
    """What the sustained load multiplies: sums of products within what float32 holds."""
    one, other = integrity.small(BENCH, 64, 256, 4), integrity.small(BENCH, 256, 64, 5)
    assert int(one.min()) == -15
    assert int(one.max()) == 16
    sums = one.long() @ other.long()
    assert int(sums.abs().max()) < 2**24
    assert torch.equal(torch.mm(one, other), sums.to(torch.bfloat16))


def test_memory_that_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One word that changes between write and read is counted, with its place and both values."""
    how = {"chunk_mib": 1, "most_mib": 4, "share": 1.0, "patterns": 1}
    assert integrity._memory(BENCH, how)["wrong"] == 0
    made: list[torch.Tensor] = []

    class Forgetful(Bench):
        def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
            made.append(super().empty(count, dtype))
            return made[-1]

    fill, calls = verify.fill, iter(range(10**6))

    def and_flip(*given: Any) -> None:
        fill(*given)
        if next(calls) == 3:  # all three chunks are written, none is read yet
            made[1][1000] ^= 4

    monkeypatch.setattr(verify, "fill", and_flip)
    found = integrity._memory(Forgetful(torch, "cpu", 0), how)
    assert found["wrong"] == 2  # before and after it was inverted
    assert found["first"].startswith(f"word {(1 << 18) + 1000} is 0x")
