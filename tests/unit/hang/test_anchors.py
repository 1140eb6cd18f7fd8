"""A line is looked at if any anchor is in it, and only then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from preflight.hang.explain.repeats import any_of

WORDS = st.frozensets(st.binary(min_size=1, max_size=4), min_size=1, max_size=8)


@given(WORDS, st.binary(max_size=12))
def test_any_word_is_found_where_it_stands(words: frozenset[bytes], line: bytes) -> None:
    """Neither hides another, nor is one found that is not there."""
    assert (any_of(words).search(line) is not None) == any(word in line for word in words)
