"""A relay's frames: both halves agree, and nothing forged, replayed or too long gets in."""

from __future__ import annotations

import node_relay as nodes
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.transport import relay as ours

KEY = b"k" * 32
BODIES = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=200)), max_size=8
)
CUTS = st.lists(st.integers(1, 40), max_size=60)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut bytes up as a network might."""
    found = []
    for cut in cuts:
        found.append(data[:cut])
        data = data[cut:]
    return [*found, data]


@given(BODIES, CUTS)
def test_frames_arrive_however_they_are_cut(
    said: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    """What one side says the other hears, in both directions, whatever the network makes of it."""
    down, up = ours.Sealer(KEY), nodes.Sealer(KEY)
    there, here = nodes.Opener(KEY), ours.Opener(KEY)
    sent = b"".join(down.seal(*frame) for frame in said)
    assert [f for piece in pieces(sent, cuts) for f in there.feed(piece)] == said
    sent = b"".join(up.seal(*frame) for frame in said)
    assert [tuple(f) for piece in pieces(sent, cuts) for f in here.feed(piece)] == said


@given(st.binary(min_size=1, max_size=50), st.data())
def test_a_changed_bit_is_refused(body: bytes, data: st.DataObject) -> None:
    """A frame that was touched on its way, or made with another key, is no frame."""
    sealed = bytearray(ours.Sealer(KEY).seal(ours.STDIN, 1, body))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(nodes.Refused):
        # A length that now promises more is met by what follows.
        list(nodes.Opener(KEY).feed(bytes(sealed) + bytes(nodes.LARGEST + 64)))


@pytest.mark.parametrize(("module", "error"), [(ours, ours.RefusedError), (nodes, nodes.Refused)])
def test_lies_are_refused_on_both_sides(module: object, error: type[Exception]) -> None:
    """Another key, the same frame twice, a frame left out, and one that is too long are refused."""
    sealer = ours.Sealer(KEY)
    first, second = sealer.seal(1, 1, b"first"), sealer.seal(1, 1, b"second")
    opener = module.Opener  # type: ignore[attr-defined]
    with pytest.raises(error):
        list(opener(b"x" * 32).feed(first))
    with pytest.raises(error):
        list(opener(KEY).feed(first + first))
    with pytest.raises(error):
        list(opener(KEY).feed(second))
    with pytest.raises(error):  # refused by its head: nobody waits for the rest
        list(opener(KEY).feed(ours.HEAD.pack(ours.OUT, 1, ours.LARGEST + 1)))


def test_both_halves_are_one_protocol() -> None:
    """The numbers of the controller's half and the node's are the same."""
    names = [name for name in vars(nodes) if name.isupper() and hasattr(ours, name)]
    assert len(names) > 12
    for name in names:
        theirs, mine = getattr(nodes, name), getattr(ours, name)
        assert getattr(theirs, "format", theirs) == getattr(mine, "format", mine)
