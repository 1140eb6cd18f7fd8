"""Runs the waves of a sweep, one after the other, and writes down after each where it stands."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from preflight.errors import UsageError
from preflight.fleet.nodeset import fold
from preflight.report.rebuilt import found_in
from preflight.sweeping.clock import wave_budget_s
from preflight.sweeping.slurm_ask import SlurmError
from preflight.sweeping.standing import Standing
from preflight.sweeping.wave_process import WaveError, WaveProcess
from preflight.sweeping.waves import plan_waves

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from preflight.sweeping.idle import Chooser, Chosen
    from preflight.sweeping.nights import Former
    from preflight.sweeping.screen import Screen
    from preflight.sweeping.state import Sweep

WATCH_S: Final = 20.0
"""How often Slurm is asked whether somebody's job has come to a node of the wave."""

PAUSES_S: Final = (10.0, 60.0)
"""Before a slurmctld that does not answer is asked again: it may just be restarted."""

LATE_S: Final = 120.0
"""How long after its budget a wave is ended: it writes its report after its last stage."""

MOST_TRIES: Final = 3
"""After so many tries a wave to which jobs keep coming is left for another night."""

ENDED: Final = "it was ended from outside, or took too long"

_LATE_ROUNDS = 3
"""How often nodes that have become idle meanwhile are taken up."""

_LOOK_S = 0.5
_USAGE, _EMPTY = 4, 5


class Sweeper:
    """One call of `preflight sweep`: goes on from a state until it is done, or the time is up."""

    def __init__(
        self, folder: Path, sweep: Sweep, chooser: Chooser, screen: Screen, lock: int
    ) -> None:
        self.trouble = ""
        """Why it could not go on."""
        self.time_up = False
        self._now = Standing(folder, sweep)
        self._chooser = chooser
        self._screen = screen
        self._lock = lock
        self._late_rounds = 0

    @property
    def sweep(self) -> Sweep:
        """Where it stands."""
        return self._now.sweep

    def run(self, former: tuple[Former, ...]) -> None:
        """Do all waves, then those whose nodes have become idle meanwhile.

        KeyboardInterrupt ends the wave that runs, and passes on; the state is written.
        """
        try:
            self._now.write()
            while not (self.time_up or self.trouble):
                number = self._now.next
                if number is not None:
                    self._wave(number)
                elif not self._add_late(former):
                    break
            self._now.write()
        except OSError as error:
            self.trouble = f"{error.strerror or error}: {error.filename or self._now.folder}"

    # -- one wave

    def _wave(self, number: int) -> None:
        nodes = self._still_free(number)
        if not nodes or self.trouble:
            return
        now = self._now
        budget_s = wave_budget_s(self.sweep.usual_s, now.left_s, now.open_waves)
        if budget_s is None:
            self.time_up = True
            return
        tries = self.sweep.waves[number].tries + 1
        name = f"wave-{number + 1:03}" + (f"-{tries}" if tries > 1 else "")
        now.set(number, stand="begun", folder=name, tries=tries, why="")
        self._screen.begins(now.at(number), nodes, now.nodes_after(number), now.done_at)
        began = time.monotonic()
        words = self._words(nodes, name, budget_s)
        process = WaveProcess(
            words, now.folder / name, self.sweep.cwd, self._lock, self.sweep.sweep
        )
        try:
            came, status = self._look_after(process, nodes, number, budget_s + LATE_S)
        except BaseException:
            process.stop()
            raise
        if came:
            self._broken_by_jobs(number, came)
        else:
            self._take(number, process, status, time.monotonic() - began)

    def _still_free(self, number: int) -> tuple[str, ...]:
        """Leave out of a wave whoever is busy by now; nobody left: nothing to do."""
        chosen = self._ask(self.sweep.waves[number].nodes)
        if chosen is None:
            return ()
        if chosen.left_out:
            self._screen.left_out(chosen.left_out, after=" of the next wave")
            self._now.leave_out(number, chosen.left_out)
        return chosen.nodes

    def _ask(self, nodes: tuple[str, ...]) -> Chosen | None:
        """Who of them is idle now; None, with the trouble noted, if Slurm keeps silent."""
        for pause_s in (*(PAUSES_S if self._now.took_s else ()), None):
            try:
                chosen = self._chooser.choose(nodes)
            except SlurmError as error:
                self.trouble = str(error)
                if pause_s is not None:
                    time.sleep(pause_s)
            except UsageError as error:  # the reservation is over
                self.trouble = str(error)
                return None
            else:
                self.trouble = ""
                return chosen
        return None

    def _look_after(
        self, process: WaveProcess, nodes: tuple[str, ...], number: int, longest_s: float
    ) -> tuple[Mapping[str, str], int]:
        """Wait for a wave's end; end it where a job comes, or where it does not end by itself."""
        began = looked = time.monotonic()
        while (status := process.ended(_LOOK_S)) is None:
            now = time.monotonic()
            self._screen.goes_on(self._now.at(number), now - began, process.phase)
            if now - looked >= WATCH_S:
                looked = now
                if came := self._chooser.arrived(nodes):
                    process.stop()
                    return came, 0
            if now - began > longest_s:
                process.stop()
                break
        return {}, process.ended(0) or 0 if status is None else status

    def _broken_by_jobs(self, number: int, came: Mapping[str, str]) -> None:
        """Do it again without the nodes to which jobs came, unless they keep coming."""
        again = self.sweep.waves[number].tries < MOST_TRIES
        end = "the others again" if again else "the others another night"
        self._screen.labelled("", f"ended, a job came to {fold(came)}; {end}")
        stand = "waiting" if again else "broken off"
        self._now.set(number, stand=stand, why="jobs came to its nodes")
        self._now.leave_out(number, came)

    def _take(self, number: int, process: WaveProcess, status: int, seconds: float) -> None:
        """Read what a wave found, and say it."""
        try:
            report = process.report()
        except WaveError:
            ended = f"killed (signal {-status})" if status < 0 else f"ended with {status}"
            said = f"{ended}, it left no report; its last words: {process.last_words}"
            self._now.set(number, stand="broken off", why=said)
            self._screen.labelled("", said)
            if status in (_USAGE, _EMPTY):  # every other wave would say the same
                self.trouble = process.last_words
            return
        if report.interrupted:
            self._now.set(number, stand="broken off", why=ENDED)
        else:
            pairs = report.coverage
            whole = pairs is not None and pairs.pairs_run == pairs.pairs
            self._now.set(number, stand="done", whole=whole)
            self._now.took_s.append(seconds)
        self._screen.found(found_in(report))
        self._screen.ends(report.fleet, seconds)

    # -- around the waves

    def _add_late(self, former: tuple[Former, ...]) -> bool:
        """Plan waves of nodes that were busy and are idle now; say whether there are any."""
        sweep = self.sweep
        waiting = tuple(name for name in sweep.nodes if name in sweep.left_out)
        if not waiting or self._chooser.whom == "all" or self._late_rounds >= _LATE_ROUNDS:
            return False
        self._late_rounds += 1
        chosen = self._ask(waiting)
        if chosen is None or not chosen.nodes:
            return False
        nights = [night.waves for night in former]
        late = plan_waves(chosen.nodes, sweep.leaves, sweep.most, nights)
        self._screen.labelled("idle now", f"{fold(chosen.nodes)}  {len(chosen.nodes)} more")
        self._now.add(late, chosen.nodes)
        return True

    def _words(self, nodes: tuple[str, ...], name: str, budget_s: float) -> list[str]:
        told = {
            "nodes": ",".join(nodes), "report": self._now.folder / name, "tier": self.sweep.tier,
            "fail-fast": "never", "budget": f"{budget_s:.0f}",
        }  # fmt: skip
        own = [f"--preflight-{option}={value}" for option, value in told.items()]
        return [*self.sweep.folders, *self.sweep.words, *own]
