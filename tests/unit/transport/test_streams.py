"""Output is cut into lines and kept within bounds however the network cuts it up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from preflight.core.remote_command import STDERR_KEPT, OutputBuffer, with_deadline
from preflight.core.text import WIDTH, excerpt, last_line

CHUNKS = st.lists(st.text("ab\n", max_size=8).map(str.encode), max_size=20)


def lines_of(buffer: OutputBuffer) -> list[bytes]:
    """Take every whole line there is."""
    found = []
    while (line := buffer.take_line()) is not None:
        found.append(line)
    return found


@given(CHUNKS)
def test_lines_do_not_depend_on_how_they_arrive(chunks: list[bytes]) -> None:
    """Lines taken after every piece are those of the whole; the unfinished rest is left."""
    buffer, lines = OutputBuffer(10**6), []
    for chunk in chunks:
        buffer.add_stdout(chunk)
        lines += lines_of(buffer)
    *whole, rest = b"".join(chunks).split(b"\n")
    assert lines == whole
    assert buffer.answer(0, 0.0).stdout == rest


@given(CHUNKS, st.integers(0, 30))
def test_the_limit_holds_over_all_that_was_ever_written(chunks: list[bytes], limit: int) -> None:
    """No more than the limit is kept, taken lines included, and exceeding it shows."""
    buffer, kept = OutputBuffer(limit), 0
    for chunk in chunks:
        buffer.add_stdout(chunk)
        kept += sum(len(line) + 1 for line in lines_of(buffer))
    total = sum(map(len, chunks))
    assert buffer.overflow == (total > limit)
    assert kept + len(buffer.answer(0, 0.0).stdout) == min(total, limit)


def test_the_end_of_stderr_is_kept() -> None:
    """A program's reason for giving up is what it says last."""
    buffer = OutputBuffer(10**6)
    for number in range(40):
        buffer.add_stderr(b"%06d" % number * 1000)
    kept = buffer.answer(1, 0.0).stderr
    assert len(kept) == STDERR_KEPT
    assert kept.endswith(b"000039")


@given(st.one_of(st.text(), st.binary(max_size=4000)))
def test_what_a_node_wrote_never_reaches_the_terminal_raw(text: str | bytes) -> None:
    """A quotation is one printable line of bounded length, whatever it was."""
    words = excerpt(text)
    assert len(words) <= WIDTH
    assert words == "" or words.isprintable()


def test_escape_sequences_vanish_whole() -> None:
    """Colours and titles leave no debris in a sentence."""
    assert excerpt(b"\x1b[31mred\x1b[0m \x1b]0;title\x07alert\x07 \xff") == "red alert \ufffd"
    assert last_line(b"first\n  the reason \x1b[K\n\n \n") == "the reason"
    assert last_line(b"") == ""


def test_every_command_has_a_deadline_of_its_own() -> None:
    """timeout(1) gets whole seconds, never zero, which would mean none at all."""
    assert with_deadline(["a", "b"], 1.2) == ["timeout", "-k", "2", "2", "a", "b"]
    assert with_deadline(["a"], 0.0)[3] == "1"
