"""The way to a node in steps: each is a check, and the first that fails explains the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.verdict import Verdict, fail, not_run, ok

if TYPE_CHECKING:
    from preflight.facts.node import Reach
    from preflight.transport.protocol import Step

STEPS: Final[tuple[Step, ...]] = ("name", "route", "hostkey", "login", "python", "answer")
"""In the order in which they are taken."""

_SSH_STEPS: Final = frozenset({"name", "route", "hostkey", "login"})
_NO_LOGIN: Final = frozenset({"local", "torchrun"})
_WORDS: Final[dict[Step, str]] = {
    "name": "its name resolves",
    "route": "it accepts connections",
    "hostkey": "its host key is the known one",
    "login": "it lets us in",
    "python": "its Python runs",
    "answer": "the probe answered",
}


def judge_step(step: Step, reach: Reach) -> Verdict:
    """Say whether one step of the way succeeded; a step behind the failed one is `not_run`."""
    if reach.transport in _NO_LOGIN and step in _SSH_STEPS:
        return not_run(f"{reach.transport}: no login needed")
    if step == "answer" and reach.failed is None and reach.shortfall is not None:
        # Its facts are whole and may tell why, so that they are judged all the same.
        short = reach.shortfall
        return fail(short.sentence, advice=short.advice, cause="ranks", blocks=False)
    if reach.transport == "srun" and step in _SSH_STEPS - {"route"}:
        return not_run("srun: Slurm starts us, no login needed")
    if reach.failed is None or STEPS.index(step) < STEPS.index(reach.failed):
        return ok(_WORDS[step], transport=reach.transport)
    if step == reach.failed:
        return _failed(reach)
    return not_run(f"not reached: {reach.failed} failed")


def _failed(reach: Reach) -> Verdict:
    if not reach.out_of_time:
        return fail(
            reach.sentence, advice=reach.advice, blame=reach.blame, transport=reach.transport
        )
    return not_run(
        f"the run's time was up before it had answered ({reach.seconds:.1f} s); "
        "give more: --preflight-budget=SECONDS",
        stopped=True,
        blocked=True,
    )
