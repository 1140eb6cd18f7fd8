"""Data that is checked after every operation: one wrong bit is found, and its end named."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from sweep import (
    process_groups,
    transports,
    verify,
)

from tests.lazy_torch import torch
from tests.unit.fabric.ends import Both, Partner, climb

pytestmark = pytest.mark.slow  # torch is imported


@pytest.mark.parametrize(("flip_at", "seen"), [(1, 12), (12, 12), (40, 41), (41, 41)])
def test_small_data_on_a_gpu_are_compared_after_the_last_operation(flip_at: int, seen: int) -> None:
    """After many doublings in place bits are lost, so one more operation is made for it."""
    keys = [verify.key(7, 0, rank) for rank in (0, 1)]
    data = verify.Data(torch, torch.device("cpu"), 64, verify.Ends(keys, 0), each=False)
    partner = Partner(flip_at)
    for _ in range(12 if seen == 12 else 40):
        partner.reduce(data.buffer)
        data.check()
    data.settle(partner)
    assert (data.operations, partner.operations) == (seen, seen)
    assert bool(data.wrong) == (flip_at in (12, 41))


@pytest.mark.parametrize("operation", [1, 2, 31, 61, 66])
def test_one_wrong_bit_in_any_operation_is_found_and_numbered(operation: int) -> None:
    """Warm-up, ladder, soak; also high bits in a long run, which doubling would shift out."""
    climbed = climb(
        Partner(operation), ladder=[[1 << 16, 2, 20]], soak=[1 << 17, 2, 40], soak_s=60.0
    )
    assert climbed.spoilt
    assert climbed.data is not None
    first = operation <= 22
    number, of = (operation, 22) if first else (operation - 24, 42)  # two sums in float32
    words = climbed.data.words()
    assert f"in operation {number} of {of}; 1 of them" in words
    assert f"{(1 << 16) if first else (1 << 17)} B: element 5 of" in words
    got, wanted = (int(word, 16) for word in re.findall(r"0x[0-9a-f]{8}", words))
    assert got ^ wanted == 1 << 30


@pytest.mark.parametrize("elements", [1, 2, 3, 1 << 10])
def test_any_bit_that_differs_is_seen(elements: int) -> None:
    """The first bit of a buffer, its last, and none."""
    buffer = torch.arange(elements, dtype=torch.int32)
    assert verify.equal_on_host(buffer, buffer.clone())
    for place, bit in ((0, 1), (elements - 1, -(2**31))):
        other = buffer.clone()
        other[place] ^= bit
        assert not verify.equal_on_host(buffer, other)


def test_a_device_tells_the_same_without_being_waited_for() -> None:
    """What is enqueued on a GPU finds the first wrong element as the CPU's comparison does."""
    wanted = torch.arange(1000, dtype=torch.int32)
    buffer = wanted.clone()
    assert verify.report(torch, buffer, wanted).tolist()[0] == 0
    buffer[[17, 400]] = -5
    assert verify.report(torch, buffer, wanted).tolist() == [1, 17, -5]


@pytest.mark.proves("fabric.allreduce", finds="a wrong bit")
def test_wrong_data_names_the_end_that_got_it_and_tries_with_roles_swapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The healthy end is measured; the other says what came out, and what swapping showed."""
    both = Both(monkeypatch, ladder=[[8, 1, 5], [1 << 16, 1, 10]], soak=[1 << 16, 1, 10])
    both.spoil("h2")
    first, second = both.measure()
    assert (first["state"], second["state"]) == ("measured", "corrupt")
    sizes = [[timing["size_bytes"] for timing in end["timings"]] for end in (first, second)]
    assert sizes == [[8, 1 << 16]] * 2
    assert "with the roles swapped 8 of 8" in second["error"]
    assert second["error"].endswith("its own sum without a network is right")


def test_sums_that_go_wrong_in_one_type_only_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What adds int32 rightly may add float32 wrongly: other kernels, other circuits."""
    both = Both(monkeypatch, ladder=[[8, 1, 5], [1 << 16, 1, 10], [1 << 17, 1, 5]])
    both.spoil("h1", only=torch.float32)
    first, second = both.measure()
    assert (first["state"], second["state"]) == ("corrupt", "measured")
    assert first["error"].startswith("65536 B: element 3 of 16384 float32 came out as 0x")
    assert "in operation 1 of 2; 2 of them" in first["error"]
    assert "with the roles swapped 8 of 8; its own sum" in first["error"]


@pytest.mark.parametrize("ends", [2, 3, 8, 16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_float_sums_are_exact_in_any_order_and_use_all_bits(dtype: str, ends: int) -> None:
    """So they are compared to the bit; a flipped one is found, with its type."""
    keys = [verify.key(7, 0, rank) for rank in range(ends)]
    own = verify.Ends(keys, 0)
    data = verify.Data(torch, torch.device("cpu"), 1 << 16, own, each=True, dtype=dtype)
    parts = [torch.empty_like(data.buffer) for _ in keys]
    for part, key in zip(parts, keys, strict=True):
        verify.fill(torch, part, key, ends)
    exact = sum(part.double() for part in parts)
    most = 2.0 ** {"float32": 24, "bfloat16": 8}[dtype]
    assert most / 4 < float(exact.abs().max()) <= most
    assert len(exact.unique()) > most / 4 or dtype == "float32"
    for order in (parts, parts[::-1]):
        total = torch.zeros_like(data.buffer)
        for part in order:
            total += part
        assert torch.equal(total.double(), exact)
        data.buffer.copy_(total)
        data.check()
    assert bool(data.wrong) is False
    assert data.is_right_alone()
    data.buffer.copy_(total)
    data.buffer.view(torch.int16)[5] ^= 1
    data.check()
    data.settle(None)
    assert f" {dtype} came out as 0x" in data.words()


def test_wrong_data_in_one_role_only_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Swapped, nothing is wrong any more: it is not that end's memory."""
    both = Both(monkeypatch, ladder=[[1 << 16, 1, 10]])
    both.spoil("h2", when_rank=1)
    first, second = both.measure()
    assert (first["state"], second["state"]) == ("measured", "corrupt")
    assert "11 of them were wrong here; with the roles swapped 0 of 8" in second["error"]


def test_what_a_pair_that_broke_off_meant_to_use_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL names its network before it connects: sockets at one end only explain the failure."""
    monkeypatch.setattr(transports.Transport, "words", lambda _: "NET/Socket")

    def refused(*_: Any) -> None:
        raise RuntimeError("no way to the partner")

    monkeypatch.setattr(process_groups, "connect", refused)
    ends = Both(monkeypatch, op_s=1).measure()
    assert {(end["state"], end["net"]) for end in ends} == {("no_connect", "NET/Socket")}


@pytest.mark.proves("fabric.intra_node", finds="a rail that returns wrong data")
@pytest.mark.proves("fabric.intra_node", passes="three rails with right data")
def test_three_rails_of_a_node_all_reduce_and_wrong_data_name_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Right data on all three; then rail 1 gets them wrong, and the other two say nothing of it."""
    # Those that are fine wait `op_s` for the third to leave with them.
    node = Both(monkeypatch, ladder=[[8, 1, 5], [1 << 16, 1, 10]], soak=[1 << 16, 1, 10], op_s=4)
    fine = node.measure_inside(0, 1, 2)
    assert {end["state"] for end in fine} == {"measured"}, fine
    for end in fine:
        kinds = [(t["size_bytes"], t["phase"], len(t["times_us"])) for t in end["timings"]]
        assert kinds == [(8, "ladder", 5), (1 << 16, "ladder", 10)]
    node.spoil("h1", when_rank=1)
    spoilt = node.measure_inside(0, 1, 2)
    assert [end["state"] for end in spoilt] == ["measured", "corrupt", "measured"]
    assert spoilt[1]["error"].endswith("its own sum of the same data is right")


@pytest.mark.parametrize("ends", [3, 4])
def test_small_data_of_many_ends_are_compared_by_one_more_operation(ends: int) -> None:
    """In place the sum grows by their number each time: only a fresh one can be compared."""
    keys = [verify.key(7, 0, rank) for rank in range(ends)]
    data = verify.Data(torch, torch.device("cpu"), 64, verify.Ends(keys, 0), each=False)

    class Others:
        def reduce(self, tensor: Any) -> None:
            tensor.copy_(verify.expected(torch, tensor, keys))

    others = Others()
    for _ in range(3):
        others.reduce(data.buffer)
        data.check()
    data.buffer.zero_()
    data.settle(others)
    assert (data.operations, data.wrong) == (4, None)


def test_no_two_ends_send_the_same_data() -> None:
    """Keys differ by seed, round and rank."""
    ends = product((1, 2), range(50), (0, 1))
    keys = {verify.key(seed, number, rank) for seed, number, rank in ends}
    assert len(keys) == 200
