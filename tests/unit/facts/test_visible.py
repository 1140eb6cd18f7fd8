"""CUDA_VISIBLE_DEVICES is read as CUDA reads it, also where that surprises people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.checks.env.test_cuda_visible_devices import read_visible
from tests.unit.facts.builders import gpu, gpus, mig_gpu

FOUR = gpus(4)
UUID = FOUR[2].uuid


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, (0, 1, 2, 3)),
        ("2,1", (2, 1)),
        (" 0, 1", (0, 1)),
        ("0,1,", (0, 1)),
        ("0,2,-1", (0, 2)),
        ("1gpu2,2ampere", (1, 2)),
        ("+3", (3,)),
        (UUID, (2,)),
        (UUID[:7], (2,)),
        (f"{UUID},{FOUR[0].uuid[:6]}", (2, 0)),
    ],
)
def test_lists_that_cuda_uses_whole(value: str | None, indices: tuple[int, ...]) -> None:
    """Indices, abbreviated UUIDs, spaces before numbers and a closing -1 are fine."""
    visible = read_visible(value, FOUR)
    assert visible.indices == indices
    assert visible.trouble == ""


@pytest.mark.parametrize(
    ("value", "indices", "trouble"),
    [
        ("", (), "it is empty"),
        ("-1", (), "numbered from 0"),
        ("0,2,-1,1", (0, 2), "stops at '-1'"),
        ("0,1,4,2", (0, 1), "stops at '4': there are 4 GPUs"),
        ("0,,1", (0,), "it is empty"),
        ("0,1,0", (), "occurs twice, so CUDA hides every GPU"),
        ("1,1x", (), "occurs twice"),
        (f"{UUID},{UUID[:9]}", (), "occurs twice"),
        ("GPU-ffff", (), "no device here has this UUID"),
        ("GPU-", (), "4 devices here begin like this"),
        (f"{UUID},0", (2,), "does not mix kinds"),
        (f"0,{UUID}", (0,), "neither an index nor a UUID"),
        (f"{UUID}, {FOUR[0].uuid}", (2,), "mix kinds or skip spaces"),
        (UUID.replace("GPU-", "gpu-"), (), "neither an index nor a UUID"),
        ("NoDevFiles", (), "stops at 'NoDevFiles': it is Slurm's word for a step without GPUs"),
        ("all", (), "stops at 'all': it belongs in NVIDIA_VISIBLE_DEVICES"),
        ("none", (), "belongs in NVIDIA_VISIBLE_DEVICES"),
        ("99999999999999999999", (), "numbered from 0"),
    ],
)
def test_lists_that_cuda_cuts_short(value: str, indices: tuple[int, ...], trouble: str) -> None:
    """CUDA prints nothing when it stops, so the verdict has the reason."""
    visible = read_visible(value, FOUR)
    assert visible.indices == indices
    assert trouble in visible.trouble


@pytest.mark.parametrize(
    ("value", "indices", "trouble", "remedy"),
    [
        ("0-3", (0,), "it knows no ranges", "write 0,1,2,3"),
        ("0..2", (0,), "it knows no ranges", "write 0,1,2"),
        ("0;1", (0,), "only a comma separates", "0,1"),
        ("0 1", (0,), "only a comma separates", "0,1"),
        ("0:1", (0,), "it knows no ranges", "write 0,1"),
        ("0x1", (0,), "no hexadecimal", "decimal"),
        ("0.5", (0,), "only a comma separates", "0,5"),
        ("1,2-3", (1, 2), "'2-3' as 2", "write 2,3"),
    ],
)
def test_what_cuda_drops_behind_a_number_was_meant(
    value: str, indices: tuple[int, ...], trouble: str, remedy: str
) -> None:
    """A range or another separator silently leaves one GPU: the verdict has what to write."""
    visible = read_visible(value, FOUR)
    assert visible.indices == indices
    assert trouble in visible.trouble
    assert remedy in visible.remedy


def test_a_process_sees_one_mig_instance() -> None:
    """However many MIG instances are listed, or none, CUDA shows one of them."""
    split = (gpu(0), mig_gpu(1, 2))
    first, second = (mig.uuid for mig in split[1].mig)
    assert [one.mig for one in read_visible(second, split).devices] == [second]
    assert [one.mig for one in read_visible(second[:7], split).devices] == [second]
    both = read_visible(f"{second},{first}", split)
    assert [one.mig for one in both.devices] == [second]
    assert "one MIG instance, not 2" in both.trouble
    unset = read_visible(None, split)
    assert [one.mig for one in unset.devices] == [first]
    assert read_visible(f"MIG-{split[1].uuid}/1/0", split).indices == (1,)
    assert read_visible(f"MIG-{split[0].uuid}/1/0", split).indices == ()
    assert read_visible("MIG-ffff", split).trouble.endswith("no device here has this UUID")


def test_a_gpu_in_mig_mode_without_an_instance_is_no_use() -> None:
    """A GPU that was split but never filled hides itself and leaves the others."""
    visible = read_visible("0,1", (gpu(0), mig_gpu(1, 0)))
    assert visible.indices == (0,)
    assert visible.trouble == "GPU1 is in MIG mode without an instance"


@given(st.text() | st.lists(st.integers(-3, 6)).map(lambda n: ",".join(map(str, n))))
def test_any_value_gives_devices_that_exist_once(value: str) -> None:
    """Whatever is exported, the result names real GPUs, each at most once."""
    visible = read_visible(value, FOUR)
    assert len(set(visible.indices)) == len(visible.indices)
    assert set(visible.indices) <= {0, 1, 2, 3}


@given(st.permutations(range(4)), st.integers(1, 4))
def test_a_valid_list_is_kept_in_order(order: list[int], length: int) -> None:
    """The job's rank 0 gets the first entry, as indices and as UUIDs."""
    chosen = order[:length]
    by_index = read_visible(",".join(map(str, chosen)), FOUR)
    by_uuid = read_visible(",".join(FOUR[at].uuid for at in chosen), FOUR)
    assert by_index.indices == by_uuid.indices == tuple(chosen)
    assert not by_index.trouble
    assert not by_uuid.trouble
