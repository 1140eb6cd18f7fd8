"""Text from a node is harmless wherever it is printed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe.node_files import bus_id, clean, clean_block


@given(st.binary(max_size=600) | st.text(max_size=600))
def test_clean_text_is_one_bounded_printable_line(raw: bytes | str) -> None:
    """No control character, escape sequence or line break survives, and 512 bytes at most."""
    text = clean(raw)
    assert text.isprintable()
    assert len(json.dumps(text)) <= 512 + len('""')


@pytest.mark.parametrize("char", ["a", "é", "😀", '"'])
def test_as_much_of_a_text_is_kept_as_fits_into_an_answer(char: str) -> None:
    """What JSON makes of a character counts: 300 processes with names of "😀" were too many."""
    size = len(json.dumps(char)) - 2
    assert clean(char * (512 // size)) == char * (512 // size)
    assert clean(char * 2000) == char * (509 // size) + "..."


def test_escape_sequences_go_whole() -> None:
    """A terminal's colour or title sequence leaves no rest behind."""
    assert clean(b"\x1b[31mred\x1b[0m \x1b]0;title\x07plain") == "red plain"
    assert clean_block(b"\t\x1b[4mGPU0\x1b[0m\nGPU0\t X\r\n", 100) == "\tGPU0\nGPU0\t X\n"


@given(st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_bus_ids_are_spelled_as_in_sysfs(domain: int, bus: int, device: int, function: int) -> None:
    """NVML's upper case and eight digits of domain become sysfs's spelling."""
    spelled = bus_id(f"{domain:08X}:{bus:02X}:{device:02X}.{function}")
    assert spelled == f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


@given(st.text(max_size=30))
def test_no_path_can_be_smuggled_into_a_bus_id(raw: str) -> None:
    """Whatever NVML says, the result is a PCI address or nothing."""
    spelled = bus_id(raw)
    assert "/" not in spelled
    assert ".." not in spelled
