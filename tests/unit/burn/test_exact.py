"""Exact products: right ones are the same everywhere, and a single wrong bit shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from burn import device
from burn.device import Bench
from sweep import verify

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.slow  # for torch, which takes seconds to import

RIGHT = "00100f2530171e80"
"""Of 512 x 256: a fixed pattern has a fixed product, on every machine and every kernel."""


@pytest.fixture(scope="module")
def bench() -> Bench:
    """The CPU, by torch: only the tests load it, as every worker collects this file."""
    return Bench(pytest.importorskip("torch"), "cpu", 0)


def _product(bench: Bench, rows: int = 512) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    one, other = device.signs(bench, rows, 256, 1), device.signs(bench, 256, rows, 2)
    return one, other, one @ other


def test_the_product_is_known(bench: Bench) -> None:
    """Whole numbers within 256, by int64 arithmetic the same; its digest never changes."""
    one, other, product = _product(bench)
    assert product.long().equal(one.long() @ other.long())
    assert int(product.abs().max()) <= 256
    assert device.first_wrong_row(bench, one, other, product) is None
    assert device.digest_of(bench, product) == RIGHT


@pytest.mark.parametrize("bit", range(16))
def test_any_single_bit_shows(bench: Bench, bit: int) -> None:
    """The proof finds its row, the digest is another, and a comparison its place."""
    one, other, product = _product(bench, 64)
    bad = product.clone()
    flipped = bad.view(bench.torch.int16)
    flipped[17, 5] ^= (1 << bit) if bit < 15 else -(1 << 15)
    if not bad.equal(product):  # but for -0, which equals 0
        assert device.first_wrong_row(bench, one, other, bad) == 17
        assert device.first_difference(bad, product) == (17, 5)
    assert device.digest_of(bench, bad) != device.digest_of(bench, product)


def test_larger_numbers_stay_exact_in_their_sums(bench: Bench) -> None:
    """What the sustained load multiplies: sums of products within what float32 holds."""
    one, other = device.small_numbers(bench, 64, 256, 4), device.small_numbers(bench, 256, 64, 5)
    assert int(one.min()) == -15
    assert int(one.max()) == 16
    sums = one.long() @ other.long()
    assert int(sums.abs().max()) < 2**24
    assert (one @ other).equal(sums.to(bench.torch.bfloat16))


def test_memory_that_forgets_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One word that changes between write and read is counted, with its place and both values."""
    how = {"chunk_mib": 1, "most_mib": 4, "share": 1.0, "patterns": 1}
    assert device._memory(bench, how)["wrong"] == 0
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
    found = device._memory(Forgetful(bench.torch, "cpu", 0), how)
    assert found["wrong"] == 2  # before and after it was inverted
    assert found["first"].startswith(f"word {(1 << 18) + 1000} is 0x")
