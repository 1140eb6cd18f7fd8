"""What is known of the variables holds together: types that are read, values that are their own."""

from __future__ import annotations

import re
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.checks.env.test_contradictions import differing, judge_contradictions
from preflight.checks.env.test_variables import (
    judge_debugging,
    judge_deprecated,
    judge_exists,
    judge_values,
)
from preflight.checks.env.values import allocator_keys, as_stoi, as_strtoll, duration, read
from preflight.checks.env.variables import family, nearest_name, unread_names, variables
from tests.unit.facts.builders import facts

KNOWN: Final = variables()
TYPES: Final = (
    "undocumented", "integer", "switch", "boolean", "number_of", "choice", "list", "functions",
    "level", "bytes", "float", "ifname", "names", "hca", "endpoint", "path", "alloc", "text",
    "secret",
)  # fmt: skip
JUDGES = (judge_values, judge_exists, judge_deprecated, judge_contradictions)
VALUES = st.one_of(
    st.text(max_size=40),
    st.sampled_from(("0", "1", "true", "", "eth0,eth1", "^=a", "a:b:c", "0x10", "1e9", "é", "[")),
    st.integers().map(str),
)

GOOD_SETTINGS = (
    "expandable_segments:True",
    "max_split_size_mb:128",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "backend:native",
    "per_process_memory_fraction:0.5",
)


def test_every_entry_can_be_read_and_says_where_it_is_from() -> None:
    """A type that no code reads, or an entry without source, would judge nothing."""
    assert {one.type for one in KNOWN.values()} <= set(TYPES)
    for one in KNOWN.values():
        assert one.source
        assert one.date.year >= 2026
        assert one.does or one.type == "undocumented"
        assert not (one.type in ("choice", "list", "level", "number_of") and not one.values)
    assert len([one for one in KNOWN.values() if one.type != "undocumented"]) > 190


def test_what_replaces_an_old_name_is_known() -> None:
    """Advice that names a variable names one that is read, and not an old one."""
    for one in KNOWN.values():
        if one.use:
            new = KNOWN[one.use.partition("=")[0]]
            assert not new.removed
            assert not new.deprecated or one.deprecated or one.removed


def test_versions_are_numbers_and_a_new_name_is_as_old_as_the_end_of_the_old_one() -> None:
    """Versions are compared: with a wrong one, a name that works would be called useless."""
    for one in KNOWN.values():
        for version in (one.since, one.removed, one.deprecated):
            assert not version or re.fullmatch(r"\d+\.\d+(\.\d+)?", version), one.name
        if one.owner == "torch" and one.deprecated:
            assert KNOWN[one.use].since == one.deprecated, one.name


def test_names_that_nothing_reads_are_not_known_names() -> None:
    """A name cannot be both read and unread; what is advised in its place is read."""
    assert not set(unread_names()) & set(KNOWN)
    for name, one in unread_names().items():
        assert family(name) is not None
        for each in re.findall(r"\b(?:NCCL|TORCH|PYTORCH|CUDA)_[A-Z_]+\b", one.instead):
            assert each in KNOWN, each


def test_defaults_and_unwise_values_are_values() -> None:
    """What a program takes by itself is never out of range; unwise values only warn."""
    for one in KNOWN.values():
        if one.default is not None and one.type != "endpoint":
            assert read(one, str(one.default), {one.name: str(one.default)}) is None, one.name
        for value in one.warn:
            remark = read(one, value, {one.name: value})
            assert remark is not None
            assert remark.weight == "warn"
        for value in one.loud:
            assert read(one, value, {one.name: value}) is None


@pytest.mark.parametrize(
    ("text", "value", "how"),
    [
        ("20", 20, "fine"), (" 20 ", 20, "fine"), ("0x14", 20, "fine"), ("024", 20, "octal"),
        ("00", 0, "fine"), ("20abc", 20, "rest"), ("abc", 0, "words"), ("", None, "empty"),
        ("-1", -1, "fine"), ("9" * 40, None, "huge"), ("1.5", 1, "rest"), ("\uff12", 0, "words"),
    ],
)  # fmt: skip
def test_numbers_as_nccl_reads_them(text: str, value: int | None, how: str) -> None:
    """C's strtoll with base 0: octal, hexadecimal, and the rest dropped."""
    assert (as_strtoll(text).value, as_strtoll(text).how) == (value, how)


def test_numbers_as_torch_reads_them() -> None:
    """C++'s stoi knows decimal only and raises where there is no number."""
    assert as_stoi("024").value == 24
    assert as_stoi("20abc").how == "rest"
    assert as_stoi("").value is as_stoi("x").value is as_stoi("9" * 12).value is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0073, "7.3 ms"), (0.47, "470 ms"), (30.06, "30 s"), (119, "120 s"), (137.4, "2.3 min"),
     (3600, "60 min"), (5 * 3600, "5 h")],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    """Two digits are what anybody remembers."""
    assert duration(seconds) == words


@given(st.dictionaries(st.sampled_from(sorted(KNOWN)) | st.text(max_size=20), VALUES, max_size=6))
def test_no_environment_crashes_a_judge(environ: dict[str, str]) -> None:
    """Bytes, blanks, foreign digits, any name: each check has a verdict."""
    for judge in JUDGES:
        assert judge(environ, "job.env").sentence
    assert judge_debugging(environ, "", facts()).sentence
    odd = differing("h1", {"h1": environ, "h2": {}, "": environ})
    assert all(one.sentence and one.advice for one in odd)
    twins = differing("h1", {"h1": environ, "h2": environ})
    assert all("two nodes cannot have one number" in one.sentence for one in twins)


@given(st.sampled_from(sorted(name for name, one in KNOWN.items() if one.type == "alloc")),
       st.text(alphabet="abc_:,=[]01.>- expandable_segments", max_size=60))  # fmt: skip
def test_an_allocator_setting_passes_only_where_torch_knows_every_key(
    name: str, value: str
) -> None:
    """Brackets left open, empty parts, signs in heaps: a remark that says what, or all is known."""
    remark = read(KNOWN[name], value, {name: value})
    if remark is not None:
        assert remark.sentence.startswith(name)
        assert remark.sentence.isprintable()
        assert remark.advice
    elif "[" not in value:
        keys = {part.partition(":")[0].replace(" ", "") for part in value.split(",")}
        assert keys <= {"", *allocator_keys()}


@given(st.lists(st.sampled_from(GOOD_SETTINGS), unique=True, max_size=4))
def test_allocator_settings_that_torch_takes_pass(settings: list[str]) -> None:
    """Whatever their number and order."""
    name, value = "PYTORCH_ALLOC_CONF", ",".join(settings)
    assert not settings or read(KNOWN[name], value, {name: value}) is None


@given(known=st.sampled_from(sorted(KNOWN)), at=st.data())
def test_a_name_with_a_wrong_letter_in_seven_is_near_some_known_name(
    known: str, at: st.DataObject
) -> None:
    """One in a name of eight letters, two in one of fourteen."""
    letters = list(known)
    for _ in range(min(2, len(letters) // 7)):
        where = at.draw(st.integers(0, len(letters) - 1))
        letters[where] = at.draw(st.sampled_from("ABCXYZ_09"))
    if len(known) >= 8:
        assert nearest_name("".join(letters))
