"""Whether a node can be reached, step by step: the first step that fails explains the rest."""

from __future__ import annotations

from typing import Final

from preflight.check import Check
from preflight.core.remote_command import Step
from preflight.facts import Node, Reach
from preflight.verdict import Conclude, Verdict, fail, not_run, ok

STEPS: Final[tuple[Step, ...]] = ("name", "route", "hostkey", "login", "python", "answer")
"""In the order in which they are taken."""

CHECKS = (
    Check("reach.name", stage="reach", tier="prolog"),
    Check("reach.route", stage="reach", tier="prolog", requires=("reach.name",)),
    Check("reach.hostkey", stage="reach", tier="prolog", requires=("reach.route",)),
    Check("reach.login", stage="reach", tier="prolog", requires=("reach.hostkey",)),
    Check("reach.python", stage="reach", tier="prolog", requires=("reach.login",)),
    Check("reach.answer", stage="reach", tier="prolog", requires=("reach.python",)),
)

_SSH_STEPS: Final = frozenset({"name", "route", "hostkey", "login"})
_NO_LOGIN: Final = frozenset({"local", "torchrun"})
_OK_WORDS: Final[dict[Step, str]] = {
    "name": "its name resolves",
    "route": "it accepts connections",
    "hostkey": "its host key is the known one",
    "login": "it lets us in",
    "python": "its Python runs",
    "answer": "the probe answered",
}


def judge_step(step: Step, reach: Reach) -> Verdict:
    """Whether one step of the way succeeded; a step after the failed one is `not_run`."""
    if reach.transport in _NO_LOGIN and step in _SSH_STEPS:
        return not_run(f"{reach.transport}: no login needed")
    if step == "answer" and reach.failed is None and reach.shortfall is not None:
        # Its facts are complete and may show why, so they are judged all the same.
        short = reach.shortfall
        return fail(short.sentence, advice=short.advice, cause="ranks", blocks=False)
    if reach.transport == "srun" and step in _SSH_STEPS - {"route"}:
        return not_run("srun: Slurm starts us, no login needed")
    if reach.failed is None or STEPS.index(step) < STEPS.index(reach.failed):
        return ok(_OK_WORDS[step], transport=reach.transport)
    if step == reach.failed:
        return _failure(reach)
    return not_run(f"not reached: {reach.failed} failed")


def _failure(reach: Reach) -> Verdict:
    if not reach.out_of_time:
        transport, blame = reach.transport, reach.blame
        return fail(reach.sentence, advice=reach.advice, blame=blame, transport=transport)
    return not_run(
        f"the run's time was up before it had answered ({reach.seconds:.1f} s); "
        "give more: --preflight-budget=SECONDS",
        stopped=True,
        blocked=True,
    )


def test_reach_name(node: Node, conclude: Conclude) -> None:
    """The node's name resolves to an address."""
    conclude(judge_step("name", node.reach))


def test_reach_route(node: Node, conclude: Conclude) -> None:
    """The node's login port accepts a connection."""
    conclude(judge_step("route", node.reach))


def test_reach_hostkey(node: Node, conclude: Conclude) -> None:
    """The node shows the host key that we know: no other machine answers in its place."""
    conclude(judge_step("hostkey", node.reach))


def test_reach_login(node: Node, conclude: Conclude) -> None:
    """The node lets this user in without a prompt."""
    conclude(judge_step("login", node.reach))


def test_reach_python(node: Node, conclude: Conclude) -> None:
    """The job's Python starts on the node."""
    conclude(judge_step("python", node.reach))


def test_reach_answer(node: Node, conclude: Conclude) -> None:
    """The probe ran on the node and its answer can be used."""
    conclude(judge_step("answer", node.reach))
