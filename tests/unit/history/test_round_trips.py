"""A history returns any nights as they were, compared with a model of a few lines."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from preflight.history import reading
from preflight.history.run_record import DIGITS, Cost, Past, RoundRecord
from preflight.history.writing import encode_numbers, writing
from tests.cases import draws
from tests.unit.history.nights import NIGHT_S, found, kept, machine, made, night, runs_of, slots

NODES = ("h1", "h2", "h3")
CHECKS = ("gpu.ecc", "gpu.xid")

_states = st.fixed_dictionaries(
    {name: st.sampled_from(["ready", "flaky", "not_ready", "unjudged"]) for name in NODES}
)
_seen = st.frozensets(st.tuples(st.sampled_from(CHECKS), st.sampled_from(NODES)))
_looked = st.frozensets(st.tuples(st.sampled_from(CHECKS), st.sampled_from(NODES)))
_nights = st.lists(st.tuples(_states, _seen, _looked), min_size=1, max_size=6)
_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300)


@pytest.mark.slow
@draws(15, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(_nights)
def test_episodes_and_standings_are_those_of_the_nights(
    nights: list[tuple[dict[str, str], frozenset[tuple[str, str]], frozenset[tuple[str, str]]]],
) -> None:
    """New, still and recovered; how often each node was bad of how many runs that judged it."""
    with tempfile.TemporaryDirectory() as folder:
        place = made(Path(folder))
        still: set[tuple[str, str]] = set()
        for number, (states, seen, looked) in enumerate(nights):
            fine = {check: frozenset(n for c, n in looked if c == check) for check in CHECKS}
            one = night(
                number,
                *(machine(name, state) for name, state in states.items()),  # type: ignore[arg-type]
                findings=tuple(found(check, about) for check, about in sorted(seen)),
                fine={check: who for check, who in fine.items() if who},
            )
            kept(place, one)
            with reading(place) as history:
                changes = history.changes(history.last_run())
            assert {(e.check, e.about) for e in changes.new} == seen - still
            assert {(e.check, e.about) for e in changes.still} == seen & still
            assert {(e.check, e.about) for e in changes.recovered} == (still - seen) & looked
            assert {(e.check, e.about) for e in changes.unseen} == (still - seen) - looked
            still = (still | seen) - (looked - seen)
        counted = [
            states
            for states, _, _ in nights
            if sum(state in ("not_ready", "flaky") for state in states.values()) < len(NODES)
        ]
        with reading(place) as history:
            for name in NODES:
                past = history.node(name)
                assert past is not None
                own = [states[name] for states in counted]
                assert past.standing.judged == sum(one != "unjudged" for one in own)
                assert past.standing.bad == sum(one in ("not_ready", "flaky") for one in own)
                assert past.standing.flaky == own.count("flaky")


@pytest.mark.slow
@draws(15)
@given(_text, _text, _text)
def test_any_words_come_back(about: str, sentence: str, uuid: str) -> None:
    """Quotes, control characters, other scripts: kept as they are, and cut where they are long."""
    with tempfile.TemporaryDirectory() as folder:
        place = made(Path(folder))
        odd = found("gpu.ecc", about, sentence=sentence, nodes=("h1",))
        kept(place, night(1, machine("h1", "not_ready", gpus=slots(uuid)), findings=(odd,)))
        with reading(place) as history:
            past = history.node("h1")
        assert past is not None
        (one,) = past.episodes
        assert one.about == about
        assert one.sentence == (sentence if len(sentence) <= 240 else sentence[:237] + "...")
        assert [seat.uuid for seat in past.seats] == [uuid] * bool(uuid)


@pytest.mark.slow
@draws(15)
@given(
    st.builds(
        Past,
        runs=st.integers(0, 99),
        done=st.dictionaries(
            st.integers(0, 9), st.builds(RoundRecord, st.integers(1, 9), st.just(3))
        ),
        suspects=st.lists(st.tuples(st.sampled_from(NODES), st.just("h9"))).map(tuple),
        costs=st.dictionaries(st.just("quick"), st.just(Cost(1.5, 2.0))),
    )
)
def test_a_fleets_rounds_come_back(past: Past) -> None:
    """As the planner left them."""
    with tempfile.TemporaryDirectory() as folder:
        place = made(Path(folder))
        with writing(place) as writer:
            writer.add(night(1, machine("h1"), machine("h2")), lambda _: (past, None))
        with reading(place) as history:
            assert history.past(("h2", "h1"), {}) == past
            assert history.past(("h1",), {}) == Past()


@given(st.lists(st.none() | st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_numbers_keep_their_significant_digits(values: list[float | None]) -> None:
    """NaN and infinity become None."""
    decoded = msgspec.json.decode(encode_numbers(tuple(values)), type=tuple[float | None, ...])
    assert len(decoded) == len(values)
    for before, after in zip(values, decoded, strict=True):
        if after is None:
            assert before is None or before != before or abs(before) > 1e300  # noqa: PLR0124
        else:
            assert before is not None
            assert abs(after - before) <= abs(before) * 10.0 ** (1 - DIGITS)


def test_a_window_ends_with_the_last_run(tmp_path: Path) -> None:
    """However long ago that was: an old history reads like a new one."""
    place = made(tmp_path)
    for number in range(0, 60, 10):
        kept(
            place, night(number, machine("h1", "not_ready"), *(machine(f"x{n}") for n in range(5)))
        )
    with reading(place) as history:
        assert [one.bad for one in history.worst(nights=30)] == [4]
        assert [one.bad for one in history.worst(nights=90)] == [6]
        runs = runs_of(history)
        assert runs[0].started_s - runs[1].started_s == 10 * NIGHT_S
        changes = history.changes(runs[0], since=runs_of(history)[3])
    assert len(changes.runs) == 4
    assert changes.before is not None
