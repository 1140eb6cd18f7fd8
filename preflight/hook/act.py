"""Carries a decision out: asks what it needs to know, tells Slurm, and remembers what it told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.hook.boot_clock import now
from preflight.hook.breaker import allowed, breaker_of
from preflight.hook.decision import Known, cause_of, decide, is_mine
from preflight.hook.drained import forget, recall, remember
from preflight.hook.model import Decision, Drained, Tokens
from preflight.hook.slurm import Slurm, SlurmError

if TYPE_CHECKING:
    from preflight.hook.breaker import Breaker
    from preflight.hook.model import Call, HookConfig, Judged

_TELL_S = 0.2
"""Of the time, to say what was done: who is cut off in the middle says nothing."""


def act(call: Call, judged: Judged, config: HookConfig, until_s: float) -> Decision:
    """Decide and do it, all by `until_s` (monotonic clock); what comes back was done.

    Asks Slurm nothing on a healthy node, and tells it one thing at most (two where nodes raced).
    """
    mine = recall(config.state_dir)
    stood_s = mine.at.least_age_s() if mine is not None else 0.0
    known = Known(call=call, judged=judged, drained=mine, stood_s=stood_s)
    return _Acting(config, until_s).decided(known)


class _Acting:
    def __init__(self, config: HookConfig, until_s: float) -> None:
        self._config = config
        self._until_s = until_s - _TELL_S
        self._slurm = Slurm(config.slurm_bin, self._until_s)
        self._most = 0

    def decided(self, known: Known) -> Decision:
        """Find out what is asked for, until it is decided; then do it."""
        while True:
            step = decide(known, self._config)
            if step == "state":
                known = self._with_state(known)
            elif step == "token":
                known = replace(known, tokens=self._token(known))
            elif step.action == "drain":
                return self._drain(step, known)
            elif step.action == "undrain":
                return self._undrain(step, known)
            else:
                return step

    def _with_state(self, known: Known) -> Known:
        """Ask for the node; forget a drain that somebody undid, or made his own."""
        try:
            state = self._slurm.node(known.judged.node)
        except SlurmError as error:
            return replace(known, unread=str(error))
        if known.drained is not None and not is_mine(state, known.drained):
            forget(self._config.state_dir)
            known = replace(known, drained=None)
        return replace(known, state=state)

    def _breaker(self) -> Breaker | None:
        config = self._config.breaker
        return None if config is None else breaker_of(config, self._slurm, self._until_s)

    def _token(self, known: Known) -> Tokens:
        config, breaker = self._config.breaker, self._breaker()
        if config is None or breaker is None:
            return Tokens(granted=False, trouble="none is configured")
        try:
            sizes = self._slurm.sizes() if config.most_share else {}
        except SlurmError:
            sizes = {}  # the number alone counts then, which is the smaller
        own = known.state.partitions if known.state is not None else ()
        self._most = allowed(config, sizes, known.call.partition, own)
        return breaker.ask(known.judged.node, self._most)

    def _drain(self, step: Decision, known: Known) -> Decision:
        """Tell Slurm; where it does not listen, the prolog's failure drains the node all the same.

        The token for that is taken.
        """
        node, cause = known.judged.node, cause_of(known)
        if cause is None:
            return step
        mine = Drained(
            check=cause.check,
            reason=cause.reason,
            time_s=time.time(),
            at=now(),
            heals=cause.heals,
        )
        unsaved = remember(self._config.state_dir, mine)
        try:
            self._slurm.drain(node, step.reason)
        except SlurmError as error:
            if known.call.occasion == "prolog":
                return replace(step, log=f"{step.log}; by the prolog's failure alone: {error}")
            said = f"not drained {node}: {error}; found {cause.reason}"
            return Decision(action="withheld", exit_code=0, log=said)
        breaker = self._breaker()
        if known.tokens is not None and breaker and not breaker.stands(node, self._most):
            return self._step_back(known, cause.reason)
        return replace(step, log=f"{step.log}; {unsaved}") if unsaved else step

    def _step_back(self, known: Known, reason: str) -> Decision:
        node = known.judged.node
        said = f"many nodes were drained at once, {self._most} are allowed; found {reason}"
        try:
            self._slurm.undrain(node)
        except SlurmError as error:
            return Decision(
                action="drain", exit_code=1, reason=reason, log=f"drain {node}: {said}; {error}"
            )
        forget(self._config.state_dir)
        return Decision(action="withheld", exit_code=0, log=f"drained and resumed {node}: {said}")

    def _undrain(self, step: Decision, known: Known) -> Decision:
        try:
            self._slurm.undrain(known.judged.node)
        except SlurmError as error:
            said = f"not resumed {known.judged.node}: {error}"
            return Decision(action="withheld", exit_code=0, log=said)
        forget(self._config.state_dir)
        return step
