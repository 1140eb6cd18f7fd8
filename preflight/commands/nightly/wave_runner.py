"""Runs the waves of a nightly run, one after the other, and writes the state after each.

A wave is `preflight check` in its own process, which ends with the nightly run's. If that is
killed, the kernel sends SIGTERM to the wave, which writes what it knows and leaves its nodes. It
starts a wave as `python -I -m preflight.commands.nightly.wave_runner PID LOCK WORDS...`, with its
own PID.

The lock is the kernel's lock on a file, which ends with its holders, however they end. A wave's
process holds it too: no nightly run begins before the wave of a killed one has left its nodes.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from preflight.commands.nightly.choice import Chooser, SlurmError, plan_waves
from preflight.commands.nightly.state import (
    Night,
    NightlyRun,
    NightlyState,
    Screen,
    clock,
    waves_of,
)
from preflight.core.command_line import EMPTY, USAGE
from preflight.core.files import file_errors, open_folder, open_new, read_regular, reason_of
from preflight.core.text import excerpt
from preflight.core.trust import who_may_plant
from preflight.errors import UsageError
from preflight.fleet.nodeset import fold
from preflight.history.place import SWEEP
from preflight.hook.child import request_at_parents_end
from preflight.report.document import Report, refuse_odd_names
from preflight.report.events import REPORT, decode_report
from preflight.report.since import report_findings

LEAST_SHARE = 1 / 12
"""Smallest share of a tier's usual time that a wave starts with: 5 minutes of the hour of `deep`.
Chosen: enough for the logins, the burn-in's first measurements and every pair of 16 nodes once."""


def wave_budget_s(usual_s: float, left_s: float | None, waves: int) -> float | None:
    """Return the next wave's time in seconds, of `waves` left; None where the time is up.

    It is the usual time; if the time is short, an equal share; if that share is too small, fewer
    waves start. `left_s` None: the nightly run has no time limit.
    """
    if left_s is None:
        return usual_s
    least_s = usual_s * LEAST_SHARE
    if left_s < least_s:
        return None
    return min(usual_s, left_s, max(left_s / waves, least_s))


SCREEN = "terminal.txt"
"""The file with the wave's terminal output."""

LEAVE_S = 60.0
"""For a wave to leave its nodes and write its report after SIGTERM."""

LARGEST = 1 << 30
"""Bytes of a wave's report."""

_TAIL = 4096
_PHASE = re.compile(r"^(?:probing|ports|burn-in|import torch|pairs) +\S.*")


class WaveProcess:
    """The process of one wave, `preflight check`, with its folder."""

    def __init__(self, words: Sequence[str], folder: Path, cwd: str, lock: int, sweep: str) -> None:
        """Start the wave; OSError if its folder cannot be written or its working folder is gone."""
        self.folder = folder
        screen = open_new(folder / SCREEN)
        argv = [sys.executable, "-IB", "-m", "preflight.commands.nightly.wave_runner"]
        argv += [str(os.getpid()), str(lock)]
        try:
            self._process = subprocess.Popen(
                [*argv, *words],
                cwd=cwd,
                env={**os.environ, "COLUMNS": "100", SWEEP: sweep},
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=screen,
                pass_fds=[lock],
                # Ctrl-C on the terminal must reach only the nightly run, which ends the wave once.
                start_new_session=True,
            )
        finally:
            os.close(screen)

    def ended(self, wait_s: float) -> int | None:
        """Return the exit status; None if the wave still runs after `wait_s`."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(wait_s)
        return None

    def stop(self) -> None:
        """End the wave by SIGTERM, so that it writes its report, then by SIGKILL. Never raises."""
        if self._process.poll() is None:
            self._process.terminate()
            if self.ended(LEAVE_S) is None:
                self.kill()

    def kill(self) -> None:
        """Kill the wave and its local children; its nodes end by themselves what runs there."""
        with suppress(ProcessLookupError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    @property
    def phase(self) -> str:
        """The wave's last progress line: "pairs 12/120 3.1 s"; "" without one."""
        phases = filter(None, map(_PHASE.match, self._latest_lines()))
        return next((" ".join(match[0].split()) for match in phases), "")

    @property
    def last_line(self) -> str:
        """The wave's last line of output."""
        return next(filter(None, self._latest_lines()), "nothing")

    def _latest_lines(self) -> list[str]:
        """The end of its output, the last line first."""
        try:
            with (self.folder / SCREEN).open("rb") as screen:
                screen.seek(max(0, screen.seek(0, os.SEEK_END) - _TAIL))
                text = screen.read(_TAIL).decode("utf-8", "replace")
        except OSError:
            return []
        return [excerpt(line, 160) for line in reversed(text.splitlines())]


def main(argv: Sequence[str]) -> int:
    """Run `preflight check WORDS`, with the same exit codes."""
    parent, lock, *words = argv
    # On another kernel, Ctrl-C and SIGTERM are passed on.
    if ask := request_at_parents_end(signal.SIGTERM):
        ask()
    if os.getppid() != int(parent):  # it has ended already
        sys.exit(2)
    # Only this process holds the lock, not its children.
    fcntl.fcntl(int(lock), fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    from preflight.commands.check import main as judge

    return judge(words)


def read_report(folder: Path) -> Report:
    """Read a wave's report.json; UsageError if the wave left no usable one."""
    path = folder / REPORT
    with file_errors(f"cannot read {path}", "repeat the wave"):
        report = decode_report(path, read_regular(path, LARGEST))
        refuse_odd_names(report)
    return report


WATCH_S: Final = 20.0
"""How often Slurm is asked whether a job has started on a node of the wave."""

PAUSES_S: Final = (10.0, 60.0)
"""Pauses before a slurmctld that does not answer is asked again: it may be restarting."""

LATE_S: Final = 120.0
"""How long after its budget a wave is ended: it still has to write its report."""

MOST_TRIES: Final = 3
"""After this many tries a wave that keeps getting jobs is left for another night."""

ENDED: Final = "it was ended from outside, or took too long"

_LATE_ROUNDS = 3
"""How often nodes that have become idle meanwhile are added."""

_LOOK_S = 0.5


class WaveRunner:
    """One call of `preflight nightly`: runs waves until all are done or the time is up."""

    def __init__(
        self, folder: Path, nightly: NightlyRun, chooser: Chooser, screen: Screen, lock: int
    ) -> None:
        self.trouble = ""
        """Why the nightly run could not continue; "" if it could."""
        self.time_up = False
        self._state = NightlyState(folder, nightly)
        self._chooser = chooser
        self._screen = screen
        self._lock = lock
        self._late_rounds = 0

    @property
    def nightly(self) -> NightlyRun:
        """The current state."""
        return self._state.nightly

    def run(self, former: tuple[Night, ...]) -> None:
        """Run all waves, then waves of nodes that have become idle meanwhile.

        KeyboardInterrupt ends the running wave and is raised again; the state is written.
        """
        try:
            self._state.write()
            while not (self.time_up or self.trouble):
                if open_waves := self._state.open_waves:
                    self._run_wave(open_waves[0])
                elif not self._add_idle_nodes(former):
                    break
            self._state.write()
        except OSError as error:
            self.trouble = f"{reason_of(error)}: {error.filename or self._state.folder}"

    # -- one wave

    def _run_wave(self, number: int) -> None:
        nodes = self._free_nodes(number)
        if not nodes or self.trouble:
            return
        state = self._state
        budget_s = wave_budget_s(self.nightly.usual_s, state.left_s, len(state.open_waves))
        if budget_s is None:
            self.time_up = True
            return
        tries = self.nightly.waves[number].tries + 1
        name = f"wave-{number + 1:03}" + (f"-{tries}" if tries > 1 else "")
        state.set_wave(number, stand="begun", folder=name, tries=tries, why="")
        self._screen.show_start(number, nodes, state)
        began = time.monotonic()
        words = self._wave_words(nodes, name, budget_s)
        process = WaveProcess(
            words, state.folder / name, self.nightly.cwd, self._lock, self.nightly.sweep
        )
        try:
            job_nodes, status = self._watch_wave(process, nodes, number, budget_s + LATE_S)
        except BaseException:
            process.stop()
            raise
        if job_nodes:
            self._break_off(number, job_nodes)
        else:
            self._read_result(number, process, status, time.monotonic() - began)

    def _free_nodes(self, number: int) -> tuple[str, ...]:
        """Leave busy nodes out of a wave; return the others."""
        nodes = self.nightly.waves[number].nodes
        left_out = self._busy_nodes(nodes)
        if left_out:
            self._screen.show_left_out(left_out, suffix=" of the next wave")
            self._state.leave_out(number, left_out)
        return () if left_out is None else tuple(n for n in nodes if n not in left_out)

    def _busy_nodes(self, nodes: tuple[str, ...]) -> dict[str, str] | None:
        """Return which nodes are not idle now; None, and set `trouble`, without an answer."""
        for pause_s in (*(PAUSES_S if self._state.took_s else ()), None):
            try:
                left_out = self._chooser.left_out(nodes)
            except SlurmError as error:
                self.trouble = str(error)
                if pause_s is not None:
                    time.sleep(pause_s)
            except UsageError as error:  # the reservation is over
                self.trouble = str(error)
                return None
            else:
                self.trouble = ""
                return left_out
        return None

    def _watch_wave(
        self, process: WaveProcess, nodes: tuple[str, ...], number: int, longest_s: float
    ) -> tuple[Mapping[str, str], int]:
        """Wait for a wave's end; end it if a job starts on its nodes, or if it takes too long."""
        began = last_s = time.monotonic()
        while (status := process.ended(_LOOK_S)) is None:
            now = time.monotonic()
            self._screen.show_phase(self._state.label(number), now - began, process.phase)
            if now - last_s >= WATCH_S:
                last_s = now
                if job_nodes := self._chooser.nodes_with_jobs(nodes):
                    process.stop()
                    return job_nodes, 0
            if now - began > longest_s:
                process.stop()
                break
        return {}, process.ended(0) or 0 if status is None else status

    def _break_off(self, number: int, job_nodes: Mapping[str, str]) -> None:
        """Repeat a wave without the nodes on which jobs started, unless jobs keep starting."""
        repeats = self.nightly.waves[number].tries < MOST_TRIES
        end = "repeated without them" if repeats else "its other nodes are left for another night"
        self._screen.labelled("", f"ended, a job started on {fold(job_nodes)}; {end}")
        stand = "waiting" if repeats else "broken off"
        self._state.set_wave(number, stand=stand, why="jobs started on its nodes")
        self._state.leave_out(number, job_nodes)

    def _read_result(self, number: int, process: WaveProcess, status: int, seconds: float) -> None:
        """Read a wave's report and print its findings."""
        try:
            report = read_report(process.folder)
        except UsageError:
            end = f"killed (signal {-status})" if status < 0 else f"ended with {status}"
            sentence = f"{end} without a report; its last line: {process.last_line}"
            self._state.set_wave(number, stand="broken off", why=sentence)
            self._screen.labelled("", sentence)
            if status in (USAGE, EMPTY):  # every other wave would fail the same way
                self.trouble = process.last_line
            return
        if report.interrupted:
            self._state.set_wave(number, stand="broken off", why=ENDED)
        else:
            pairs = report.coverage
            is_whole = pairs is not None and pairs.pairs_run == pairs.pairs
            self._state.set_wave(number, stand="done", whole=is_whole)
            self._state.took_s.append(seconds)
        self._screen.show_findings(report_findings(report))
        self._screen.show_end(report.fleet, seconds)

    # -- around the waves

    def _add_idle_nodes(self, former: tuple[Night, ...]) -> bool:
        """Plan waves of nodes that were busy and are idle now; return whether there are any."""
        nightly = self.nightly
        waiting = tuple(name for name in nightly.nodes if name in nightly.left_out)
        if not waiting or self._chooser.source == "all" or self._late_rounds >= _LATE_ROUNDS:
            return False
        self._late_rounds += 1
        busy = self._busy_nodes(waiting)
        nodes = () if busy is None else tuple(name for name in waiting if name not in busy)
        if nodes:
            waves = plan_waves(nodes, nightly.leaves, nightly.most, waves_of(former))
            self._screen.labelled("idle now", f"{fold(nodes)}  {len(nodes)} more")
            self._state.add(waves, nodes)
        return bool(nodes)

    def _wave_words(self, nodes: tuple[str, ...], name: str, budget_s: float) -> list[str]:
        options = {
            "nodes": ",".join(nodes), "report": self._state.folder / name,
            "tier": self.nightly.tier, "fail-fast": "never", "budget": f"{budget_s:.0f}",
        }  # fmt: skip
        words = [f"--preflight-{option}={value}" for option, value in options.items()]
        site = [f"--site-checks={folder}" for folder in self.nightly.folders]
        return [*site, *self.nightly.words, *words]


NAME = "lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_POLL_S = 0.2


@contextmanager
def locked(folder: Path, *, wait_s: float = 0.0) -> Iterator[int]:
    """Hold the folder's lock; yields its descriptor. UsageError that names the holder.

    `wait_s`: how long the wave of a killed nightly run may take to end.
    """
    advice = "give a folder of your own for the nightly runs"
    with file_errors(f"--into={folder}", advice), open_folder(folder, make=True) as inside:
        # The nightly run reads back what the waves write there.
        if os.geteuid() == 0 and (reason := who_may_plant(folder)):
            raise UsageError(f"--into={folder}: {reason}: give a folder that only root can change")
        lock = os.open(NAME, _FLAGS, 0o600, dir_fd=inside)
    try:
        status = os.fstat(lock)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise UsageError(f"{folder / NAME} is a hard link to another file: remove it")
        os.fchmod(lock, 0o600)  # anyone who can open it could lock it
        ends = time.monotonic() + wait_s
        while not _try_lock(lock, folder):
            if time.monotonic() >= ends:
                holder = f" ({words})" if (words := excerpt(os.pread(lock, 200, 0), 100)) else ""
                raise UsageError(
                    f"another nightly run is active{holder} in {folder}: wait for its end, or end "
                    "it"
                )
            time.sleep(_POLL_S)
        os.ftruncate(lock, 0)
        words = f"process {os.getpid()} on {socket.gethostname()} since {clock(0):%Y-%m-%d %H:%M}\n"
        os.pwrite(lock, words.encode(), 0)
        yield lock
    finally:
        os.close(lock)


def _try_lock(lock: int, folder: Path) -> bool:
    with file_errors(f"--into={folder} cannot be locked", "give a folder on a local disk"):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
