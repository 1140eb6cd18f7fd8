"""Files that are damaged, cut off, huge or no samples at all: one line, and no crash."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from preflight.captured.archive import unpack
from preflight.core import files
from preflight.errors import UsageError
from preflight.fabric import stored
from preflight.fabric.observed import Observed, observe
from preflight.fabric.stored import encode_observed, encode_sweep, read_stored
from tests.cases import draws
from tests.unit.fabric.stored_files import SWEPT, refused


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    """NaN is no JSON, infinity no number: the byte is named, and what is whole before it."""
    content = encode_sweep(SWEPT)
    at = content.index(b"1.0", content.index(b'"gaps_us"', len(content) // 2))
    message = refused(tmp_path, content[:at] + b"NaN" + content[at + 3 :])
    assert re.search(r"not JSON at byte [\d,]+, near b'.*NaN", message)
    assert re.search(r"at least [23] of its pairs before that are whole", message)
    assert "ut of range" in refused(tmp_path, content[:at] + b"1e999" + content[at + 3 :])


def test_a_file_that_was_cut_off_says_how_far_it_was_whole(tmp_path: Path) -> None:
    """Truncated JSON, and truncated or damaged gzip."""
    content = encode_sweep(SWEPT)
    message = refused(tmp_path, content[: len(content) * 3 // 4])
    assert "it ends in the middle" in message
    assert "at least 4 of its pairs before that are whole" in message
    packed = gzip.compress(content)
    assert "damaged gzip (it ends early" in refused(tmp_path, packed[: len(packed) // 2])
    assert "damaged gzip" in refused(tmp_path, packed[:20] + b"\xff\xff" + packed[22:])
    assert f"about {len(content):,} bytes could be" in refused(tmp_path, packed + b"garbage")


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["tight", "spaced"])
def test_a_truncated_file_gets_the_advice_to_copy_it_again(
    tmp_path: Path, separators: tuple[str, str]
) -> None:
    """Inside a number, a word or a name, however its writer spaced it: whole pairs are counted."""
    content = json.dumps(json.loads(encode_sweep(SWEPT)), separators=separators).encode()
    at = content.index(b"200.0", len(content) // 2)
    for cut in (content[: at + 3], content[: at + 4], content[: at - 1]):
        message = refused(tmp_path, cut)
        assert "it ends in the middle" in message
        assert re.search(r"at least [23] of its pairs before that are whole", message)
        assert "copy it again" in message


def test_what_is_no_file_of_samples_is_refused(tmp_path: Path) -> None:
    """An empty file, no file, a folder without a run, a device: each is one line."""
    assert "is empty" in refused(tmp_path, b" \n")
    assert "nested too deep" in refused(tmp_path, b'{"ladder":' + b"[" * 100_000)
    for path in (tmp_path / "none.json", Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(UsageError, match="cannot read"):
            read_stored(path)
    with pytest.raises(UsageError, match=r"holds no measured\.json"):
        read_stored(tmp_path)


def test_a_bomb_does_not_go_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small gzip of a huge document, and one of a billion entries, are refused unread."""
    monkeypatch.setattr(stored, "LARGEST", 1 << 20)
    assert "holds more than 1 MiB" in refused(tmp_path, gzip.compress(b" " * (9 << 20)))
    assert "larger than 1 MiB" in refused(tmp_path, b" " * (2 << 20))
    monkeypatch.setattr(stored, "MOST_NUMBERS", 1000)
    assert "more than 1,000 entries" in refused(tmp_path, b"[" + b"0," * 1001 + b"0]")


def test_a_gzip_may_unpack_to_100_times_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples and archives alike, as logs are; a small file may always hold 32 MiB."""
    monkeypatch.setattr(files, "UNPACKED_ALWAYS", 1 << 20)
    bomb = gzip.compress(b" " * (9 << 20))
    assert "holds more than 1 MiB once it is unpacked" in refused(tmp_path, bomb)
    with pytest.raises(UsageError, match="holds more than 1 MiB once it is unpacked"):
        unpack(bomb)


def test_all_that_is_unpacked_has_a_bound() -> None:
    """Who reads gzip asks the one function, but for what nodes send, whose size is known."""
    root = Path(stored.__file__).parents[1]
    texts = {path: path.read_text() for path in root.rglob("*.py") if "payload" not in path.parts}
    unpacking = {path for path, text in texts.items() if re.search(r"decompress|gzip\.open", text)}
    unpacking |= {path for path, text in texts.items() if "GzipFile" in text}
    unasked = {path.name for path in unpacking if "unpacked_limit(" not in texts[path]}
    assert len(unpacking) > 3
    # Two read what nodes send, the third only the head of a file.
    assert unasked == {"flight_recorder.py", "ras_report.py", "dumps.py"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["pairs", "rounds", "ladder", "tried", "digests", "nodes", "a", "b"]),
            inner,
        )
    ),
    max_leaves=20,
)


@pytest.mark.slow
@draws(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=200), JSON))
def test_whatever_a_file_holds_is_read_or_refused(tmp_path: Path, content: Any) -> None:
    """Random bytes and random JSON never crash the reader."""
    _read_or_refuse(tmp_path, content if isinstance(content, bytes) else _dumped(content))


@pytest.mark.slow
@draws(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_is_changed_in_samples_they_are_read_or_refused(
    tmp_path: Path, data: st.DataObject
) -> None:
    """Any one value replaced by any other leaves samples that are sound, or a sentence."""
    document = json.loads(encode_sweep(SWEPT) if data.draw(st.booleans()) else SHORTENED)
    inner: Any = document
    while isinstance(inner, dict | list) and inner:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = data.draw(st.sampled_from(keys))
        if data.draw(st.integers(0, 3)) == 0 or not isinstance(inner[key], dict | list):
            inner[key] = data.draw(JSON)
            break
        inner = inner[key]
    _read_or_refuse(tmp_path, _dumped(document))


SHORTENED = encode_observed(observe(SWEPT))


def _dumped(content: Any) -> bytes:
    return json.dumps(content).encode("utf-8", "surrogatepass")


def _read_or_refuse(folder: Path, content: bytes) -> None:
    path = folder / "any.json"
    path.write_bytes(content)
    try:
        stored = read_stored(path)
    except UsageError as error:
        message = str(error)
    else:
        message = f"{path} is sound"
        assert isinstance(stored.observed, Observed)
    assert str(path) in message
