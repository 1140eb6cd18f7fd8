"""The way to a node, step by step: the first that fails explains the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.check import Check
from preflight.facts import Node, Reach
from preflight.verdict import Conclude, Verdict, fail, not_run, ok

if TYPE_CHECKING:
    from preflight.core.remote_command import Step


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


NAME = Check("reach.name", stage="reach", tier="prolog")


def judge_name(reach: Reach) -> Verdict:
    """Tell whether the name resolved: a typo or a missing DNS entry stops every job too."""
    return judge_step("name", reach)


def test_reach_name(node: Node, conclude: Conclude) -> None:
    """The node's name leads to an address."""
    conclude(judge_name(node.reach))


ROUTE = Check("reach.route", stage="reach", tier="prolog", requires=("reach.name",))


def judge_route(reach: Reach) -> Verdict:
    """Tell whether a connection came about: the node may be down, or a firewall in between."""
    return judge_step("route", reach)


def test_reach_route(node: Node, conclude: Conclude) -> None:
    """The node's login port accepts a connection."""
    conclude(judge_route(node.reach))


HOSTKEY = Check("reach.hostkey", stage="reach", tier="prolog", requires=("reach.route",))


def judge_hostkey(reach: Reach) -> Verdict:
    """Tell whether the host key is the known one; an unknown or changed key is never accepted."""
    return judge_step("hostkey", reach)


def test_reach_hostkey(node: Node, conclude: Conclude) -> None:
    """The node is the one we know, and nobody in its place."""
    conclude(judge_hostkey(node.reach))


LOGIN = Check("reach.login", stage="reach", tier="prolog", requires=("reach.hostkey",))


def judge_login(reach: Reach) -> Verdict:
    """Tell whether key or agent were accepted; preflight never asks for a password."""
    return judge_step("login", reach)


def test_reach_login(node: Node, conclude: Conclude) -> None:
    """The node lets this user in without a question."""
    conclude(judge_login(node.reach))


PYTHON = Check("reach.python", stage="reach", tier="prolog", requires=("reach.login",))


def judge_python(reach: Reach) -> Verdict:
    """Tell whether the Python of the inventory ran: the job will start the same one."""
    return judge_step("python", reach)


def test_reach_python(node: Node, conclude: Conclude) -> None:
    """The job's Python starts on the node."""
    conclude(judge_python(node.reach))


ANSWER = Check("reach.answer", stage="reach", tier="prolog", requires=("reach.python",))


def judge_answer(reach: Reach) -> Verdict:
    """Tell whether the answer was whole, of this run, and within its limits."""
    return judge_step("answer", reach)


def test_reach_answer(node: Node, conclude: Conclude) -> None:
    """The probe ran on the node and its answer can be used."""
    conclude(judge_answer(node.reach))


CHECKS = (NAME, ROUTE, HOSTKEY, LOGIN, PYTHON, ANSWER)
