"""Where no stack can be read, the kernel's word for a rank's sleep is all there is."""

from __future__ import annotations

from typing import Any

from preflight.hang.diagnose.diagnosis import diagnose
from tests.unit.hang.diagnose.jobs import collective, job, standing

NONE = {"no_stacks": "py-spy may not read it"}
SEEN = standing(collective("all_reduce", 41), wait_channel="futex_do_wait")


def test_the_rank_that_sleeps_in_something_else() -> None:
    """Half of the nodes have no py-spy; one of their ranks polls while all others wait alike."""

    def where(rank: int) -> dict[str, Any]:
        if rank < 4:
            return SEEN
        return {**NONE, "wait_channel": "do_sys_poll" if rank == 5 else "futex_do_wait"}

    answer = diagnose(job(8, where))
    assert (answer.category, answer.culprits, answer.line) == ("odd_rank", ("rank 5",), "")
    assert (
        "rank 5 (gpu001) sleeps in do_sys_poll, while 7 ranks sleep in futex_do_wait"
        in answer.sentence
    )
    assert answer.confidence < 0.5
    assert answer.unseen == ("ranks 4-7: py-spy may not read it",)


def test_the_rank_that_computes_while_all_sleep() -> None:
    """Not one stack is there; rank 0 uses a core, seven use nothing."""

    def where(rank: int) -> dict[str, Any]:
        if rank == 0:
            return {**NONE, "state": "running", "main_cpu_s": 2.9}
        return {**NONE, "wait_channel": "futex_do_wait"}

    answer = diagnose(job(8, where))
    assert (answer.category, answer.culprits) == ("odd_rank", ("rank 0",))
    assert answer.confidence <= 0.3


def test_all_in_one_sleep_is_unknown() -> None:
    """Nobody differs."""
    answer = diagnose(job(8, lambda _: {**NONE, "wait_channel": "futex_do_wait"}))
    assert (answer.category, answer.culprits) == ("unknown", ())


def test_half_and_half_is_unknown() -> None:
    """Neither side is the odd one."""
    answer = diagnose(
        job(8, lambda r: {**NONE, "wait_channel": "futex_do_wait" if r % 2 else "ep_poll"})
    )
    assert (answer.category, answer.culprits) == ("unknown", ())
