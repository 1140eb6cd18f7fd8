"""What `nvidia-smi nvlink` says of dead links is judged by peers, else by the board; never ok."""

from __future__ import annotations

import pytest

from tests.unit.captured.test_nvidia_smi_text import outcomes, verdicts

DARK = "NVML: Unable to retrieve NVLink information as all links are inActive\n"


def listed(index: int, name: str, *speeds: str) -> str:
    """One GPU's part of `nvidia-smi nvlink -s`; "" is a link that is down."""
    words = [f"{speed} GB/s" if speed else "<inactive>" for speed in speeds]
    lines = (f"\t Link {link}: {word}\n" for link, word in enumerate(words))
    return f"GPU {index}: {name} (UUID: GPU-{index}{index})\n{''.join(lines)}"


def dark(index: int, name: str) -> str:
    """A GPU of which no link is up."""
    return listed(index, name) + DARK


B200, H200, A100, V100 = (
    "NVIDIA B200",
    "NVIDIA H200",
    "NVIDIA A100-SXM4-80GB",
    "Tesla V100-SXM2-16GB",
)
A6000 = "NVIDIA RTX A6000"
WHOLE_V100 = ("25.781",) * 6
TORN_V100 = ("25.781", "", "25.781", "25.781", "", "25.781")


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        (dark(5, B200), "fail"),
        (dark(0, H200) + dark(1, H200), "fail"),
        (listed(0, B200, *("50",) * 18) + dark(1, B200), "fail"),
        (dark(0, A100) + dark(1, A100), "warn"),
        (listed(6, V100, *TORN_V100), "warn"),
        (listed(0, V100, *WHOLE_V100) + listed(1, V100, *TORN_V100), "warn"),
    ],
)
def test_the_board_tells_how_many_links_there_are(text: str, topology: str) -> None:
    """One GPU or two have no peers: the name of a board that is sold with its links decides."""
    said = verdicts(text)
    assert said["gpu.topology"].outcome == topology
    assert "on its board" in said["gpu.topology"].sentence


def test_the_dead_links_are_named() -> None:
    """Which GPU, how many are up, how many there are, which are down."""
    sentence = "GPU6: 4 NVLinks up, 6 on its board (down: link 1, 4)"
    assert verdicts(listed(6, V100, *TORN_V100))["gpu.topology"].sentence == sentence


@pytest.mark.parametrize(
    "text",
    [
        dark(0, A6000),
        dark(0, A6000) + dark(1, A6000),
        listed(0, "NVIDIA H100 NVL", "26", "", "26"),
        listed(0, A6000, "14", "14", "14", "") + listed(1, A6000, "14", "14", "14", "14"),
        dark(0, H200),
        dark(3, A100),
        dark(0, V100),
        listed(0, "NVIDIA A100 80GB PCIe", *[""] * 12),
    ],
)
def test_what_may_be_so_by_design_is_unknown(text: str) -> None:
    """A card without a bridge, a GPU alone in a virtual machine, one in MIG mode: no fault."""
    assert set(outcomes(text).values()) == {"unknown"}
    assert "by design" in verdicts(text)["gpu.topology"].sentence


def test_a_card_beside_a_bridged_pair_is_no_fault() -> None:
    """They are sold so, and the pair's links are well."""
    pair = "".join(listed(index, A6000, *("14.062",) * 4) for index in (0, 1))
    assert set(outcomes(pair + dark(2, A6000)).values()) == {"ok"}


def test_of_links_that_are_all_down_nobody_says_that_they_run() -> None:
    """The check of their speed has nothing to judge."""
    said = verdicts(dark(5, B200))["gpu.nvlink"]
    assert said.outcome == "not_run"
    assert said.sentence == "no NVLink is up: gpu.topology checks whether one should be"


def test_one_dark_board_among_eight_fails() -> None:
    """Its peers' links are up; only a board that MIG takes off its links may be meant so."""
    for name, links, topology in ((B200, 18, "fail"), (V100, 6, "fail"), (A100, 12, "warn")):
        text = "".join(
            dark(index, name) if index == 2 else listed(index, name, *("50",) * links)
            for index in range(8)
        )
        assert outcomes(text)["gpu.topology"] == topology


@pytest.mark.parametrize(
    "text",
    [
        "".join(listed(at, B200, *("50",) * 18) for at in range(3, 8)),
        "".join(listed(at, B200, *("50",) * 18) for at in (0, 1, 3)),
        "".join(listed(at, B200, *("50",) * 18) for at in range(8)).partition("\n")[2],
    ],
    ids=["begins with GPU 3", "lacks GPU 2", "begins within GPU 0"],
)
def test_a_listing_that_lacks_a_gpu_is_never_ok(text: str) -> None:
    """Unless a GPU was asked for, all are listed."""
    assert set(outcomes(text).values()) == {"unknown"}
    asked = f"$ nvidia-smi nvlink -s -i 3,5\n{listed(3, B200, *('50',) * 18)}"
    assert set(outcomes(asked + listed(5, B200, *("50",) * 18)).values()) == {"ok"}
    assert set(outcomes(listed(5, B200, *("50",) * 18)).values()) == {"ok"}
