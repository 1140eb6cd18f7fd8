"""One watched launch, from its start to our own end in its way."""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from preflight.core.text import whole
from preflight.hang.watch import signals
from preflight.hang.watch.evidence import (
    FOUND,
    NOBODY,
    PROGRESSES,
    RECORDER_FOLDER,
    Plan,
    Record,
    ask_for_dumps,
    make_folder,
    makes_pipes,
    outdated,
    plan,
    set_in_files,
    tidy,
)
from preflight.hang.watch.output import Cap, Output, Trimmer, logs
from preflight.hang.watch.progress import RankProcess, Track, ranks_of, reading_of, stalled
from preflight.hang.watch.signals import Children, ModuleRun, Relay, Witness, end_as

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from preflight.hang.watch.progress import Known

STALLED_AFTER_S = 300.0
"""Before any of torch's own limits ends the job and its evidence: 480 s (NCCL's heartbeat), 10 min
(a collective of NCCL's), 30 min (of gloo's)."""

SHORTEST_S = 2.0
CAP_MIB = 256


class Options(NamedTuple):
    """As typed."""

    command: tuple[str, ...]
    base: Path
    """The folder in which the evidence's own folder is made."""
    debug: frozenset[str] = frozenset()
    cap_mib: int = CAP_MIB
    """Of each debug file."""
    stalled_after_s: float | None = None
    tee: bool = False
    keep: bool = False
    nodes: str = ""
    """The job's nodes, or `inventory`: looked at too, from the node of rank 0."""
    inventory: str = ""
    environ: Mapping[str, str] = os.environ
    """What the launch is started in. As root our own holds less (`preflight.commands.check`)."""


NOT_FOUND, NOT_RUNNABLE = 127, 126
"""As a shell, env and timeout say it."""

_DIRECT = ("accelerate", "python", "torchrun")
"""Launchers whose ranks run on this node, with this node's folders."""

EXPLAIN_S = 60.0


def watch(options: Options) -> int:
    """Run the command and watch it; the exit code, or our death by the launch's signal."""
    children = Children(signals.block())
    witness = Witness(children)
    folder = _make(options.base)
    decided = _decide(options, folder)
    window_s = stalled_after_s(options)
    output, record = Output(), Record(folder, options.command, decided)
    try:
        copies = output.tee(children, folder) if options.tee and folder is not None else []
        launch = children.start(options.command, decided.environ(options.environ), copies)
    except OSError as error:
        witness.dismiss()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        say(f"{options.command[0]} cannot be started: {error.strerror}; check its name and path")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE
    output.let_go()
    others = (options.nodes, options.inventory)
    watcher = Watcher(launch, children, folder, record, stalled_after_s=window_s, others=others)
    relay = Relay(launch, children, witness)
    writes_logs = folder is not None and (options.debug or options.tee)
    trimmer = Trimmer([folder], Cap(options.cap_mib << 20)) if folder and writes_logs else None
    guarded = _Guard()
    guarded(record.write)
    if decided.left:
        names = ", ".join(dict.fromkeys(one.settled_by for one in decided.left))
        say(f"left as you set it: {names}")
    look_s = trim_s = time.monotonic()
    while True:
        children.reap()
        status = children.status(launch)
        if status is not None:
            break
        now = time.monotonic()
        if now >= look_s:
            guarded(watcher.look)
            look_s = time.monotonic() + watcher.every_s
        if trimmer and now >= trim_s:
            guarded(trimmer.sweep)
            trim_s = time.monotonic() + trimmer.every_s
        came = signals.wait((min(look_s, trim_s) if trimmer else look_s) - time.monotonic())
        if came is not None and came.number in signals.PASSED:
            relay.take(came)
    witness.dismiss()
    guarded(watcher.end)
    output.finish(children)
    if folder is not None:
        closing = _Closing(options, folder, record, output, children)
        asked = relay.asked_to_end
        guarded(lambda: closing.close(status, watcher, trimmer, asked=asked))
    return end_as(status)


class _Guard:
    """Does a part of the watching; whatever goes wrong with it, the launch goes on."""

    def __init__(self) -> None:
        self._once = Once()

    def __call__(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  a fault of ours must not end a job of days
            kind = type(error).__name__
            self._once.say(
                kind, f"a part of the watching failed ({kind}: {error}); the launch goes on"
            )


def _decide(options: Options, folder: Path | None) -> Plan:
    """What the launch's environment gets."""
    pipes = (
        folder is not None
        and os.path.basename(options.command[0]).rstrip(".0123456789") in _DIRECT  # noqa: PTH119
        and makes_pipes(folder)
    )
    return plan(
        options.environ,
        set_in_files(options.environ),
        str(folder or ""),
        options.debug,
        pipes=pipes,
        outdated=outdated(options.command[0], options.environ),
    )


def stalled_after_s(options: Options) -> float:
    """As typed; else the usual, or half of a shorter heartbeat, which would end the job before."""
    if options.stalled_after_s is not None:
        return options.stalled_after_s
    heartbeat_s = whole(options.environ.get("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", ""))
    return min(STALLED_AFTER_S, heartbeat_s / 2) if heartbeat_s else STALLED_AFTER_S


def _make(base: Path) -> Path | None:
    try:
        return make_folder(base)
    except OSError as error:
        say(
            f"no evidence can be kept in {base} ({error.strerror or error}): the launch goes on "
            "without; --folder names another place"
        )
        return None


class _Closing:
    """The end of a watch that has a folder."""

    def __init__(
        self,
        options: Options,
        folder: Path,
        record: Record,
        output: Output,
        children: Children,
    ) -> None:
        self._options, self._folder, self._record = options, folder, record
        self._output, self._children = output, children

    def close(self, status: int, watcher: Watcher, trimmer: Trimmer | None, *, asked: bool) -> None:
        """Keep what a person may want, take away the rest. OSError where the disk is full.

        `asked`: whether somebody ended the launch on purpose, who need not be told why it ended.
        """
        if trimmer is not None:
            trimmer.close()
        failed = status != 0 and not asked
        told = self._options
        dumps = (self._folder / RECORDER_FOLDER).glob("*[0-9]")
        wanted = told.keep or told.debug or told.tee or any(dumps)
        if not (failed or watcher.stalls or wanted):
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        self._record.ended(status)
        kept = self._output.keep(self._folder)
        if failed:
            watcher.keep_samples()
            self._tell(status, logs(self._folder, kept), in_a_stall=watcher.in_a_stall)
        tidy(self._folder)

    def _tell(self, status: int, files: list[Path], *, in_a_stall: bool) -> None:
        """`in_a_stall`: it was found, and told; the end is its echo in all likelihood."""
        said = self._explained(files) if files else ""
        ended, see = f"the launch ended {_words(status)}", f"see {self._folder}"
        if in_a_stall:
            say(f"{ended}, after the stall that is told above; {see}")
        elif files:
            say(f"{ended}; {see}\n{said}".rstrip())
        else:
            say(f"{ended}; {see}\nwhat it said went past us: with --tee it is kept, and explained")

    def _explained(self, files: list[Path]) -> str:
        """What the files say of its end; empty where that is unknown."""
        words = ["end", str(self._folder), *map(str, files)]
        run = ModuleRun(self._children, EXAMINE, words, EXPLAIN_S)
        while not run.over():
            came = signals.wait(1.0)
            if came is not None and came.number in signals.ENDING:
                break
        code, said = run.conclude()
        return said.rstrip() if code == FOUND else ""


def _words(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"by signal {os.WTERMSIG(status)}"
    return f"with exit code {os.waitstatus_to_exitcode(status)}"


ANSWER_S = 2.5
"""torch looks into its pipe once a second (TORCH_NCCL_COORD_CHECK_MILSEC), then it writes."""

_PERIOD_S = 5.0
_LOOKS = 20
"""At least so many in a window."""

_FIND_AGAIN = 6
"""Looks after which new ranks are searched for: one by one they are found by their absence."""

_ROWS = 4096
_LONGEST_WAIT_S = 3600.0
_ENDS_S = 60.0
"""Chosen: torchrun gives its ranks 30 s to end when one has."""

EXAMINE_S = 90.0
EXAMINE = "preflight.hang.watch.examine"


class Watcher:
    """Looks at the ranks every few seconds, and has them examined when they come to a stop.

    A suspicion is no finding; the ranks' stacks decide.
    """

    def __init__(
        self,
        launch: int,
        children: Children,
        folder: Path | None,
        record: Record,
        *,
        stalled_after_s: float = STALLED_AFTER_S,
        others: tuple[str, str] = ("", ""),
    ) -> None:
        self._launch, self._children, self._folder = launch, children, folder
        self._record, self._others = record, others
        self._window_s = stalled_after_s
        self.every_s = min(_PERIOD_S, stalled_after_s / _LOOKS)
        """When to call `look` next."""
        self.stalls = 0
        """How often a stall was found and told."""
        self._tracks: dict[RankProcess, Track] = {}
        self._seen: deque[tuple[object, ...]] = deque(maxlen=_ROWS)
        self._looked_s = self._examine_s = self._stood_s = 0.0
        self._looks = self._examined = 0
        self._examination: ModuleRun | None = None
        self._asked_s: float | None = None
        self._told = ""
        self._told_of: frozenset[RankProcess] = frozenset()
        self._known: Known = {}
        self._once = Once()

    def look(self) -> None:
        """Once: at every rank. OSError and what else goes wrong is the caller's to survive."""
        now = time.monotonic()
        if self._looked_s and now - self._looked_s > 3 * self.every_s + 1:
            for track in self._tracks.values():
                track.forget()  # we were stopped, and so was the launch
        self._looked_s = now
        self._sample(now)
        if quiet := stalled(self._tracks.values()):
            self._stood_s = now
        if self._examination is not None:
            if self._examination.over():
                self._conclude(self._examination)
        elif self._asked_s is not None:
            if now >= self._asked_s + ANSWER_S:
                self._examine()
        elif not quiet:
            self._examined, self._examine_s = 0, 0.0
            self._take_back()
        elif now >= self._examine_s:
            self._begin(now)

    def end(self) -> None:
        """The launch has ended: what is known is told; who still looks sees only its end."""
        if self._examination is None:
            return
        if self._examination.over():
            self._conclude(self._examination)
        else:
            self._examination.conclude()

    @property
    def in_a_stall(self) -> bool:
        """Whether one was found that lasted until the launch ended, or began to."""
        return self.stalls > 0 and time.monotonic() - self._stood_s < _ENDS_S

    def keep_samples(self) -> None:
        """Write down what was seen."""
        self._record.write_samples(self._seen)

    def _sample(self, now: float) -> None:
        gone = self._looks % _FIND_AGAIN == 0
        self._looks += 1
        for one, track in self._tracks.items():
            gone |= not self._read(one, track, now)
        if not gone:
            return
        ranks = set(ranks_of(self._launch, known=self._known))
        new = sorted(ranks - set(self._tracks), key=lambda one: one.pid)
        self._tracks = {one: track for one, track in self._tracks.items() if one in ranks}
        for one in new:
            self._tracks[one] = Track(self._window_s)
            self._read(one, self._tracks[one], now)

    def _read(self, one: RankProcess, track: Track, now: float) -> bool:
        reading = reading_of(one.pid)
        if reading is None:
            return False
        track.add(now, reading)
        self._seen.append((round(time.time(), 1), one.rank, one.pid, *reading[1:]))
        return True

    def _begin(self, now: float) -> None:
        """Dumps first: they are there before anybody is looked at."""
        self._examined += 1
        self._examine_s = now + min(self._window_s * 2**self._examined, _LONGEST_WAIT_S)
        if self._folder is not None and ask_for_dumps(self._folder):
            self._asked_s = now
        else:
            self._examine()

    def _examine(self) -> None:
        self._asked_s = None
        words = ["stall", str(self._launch), str(self.stalls + 1), str(self._folder or "")]
        self._examination = ModuleRun(self._children, EXAMINE, [*words, *self._others], EXAMINE_S)

    def _conclude(self, run: ModuleRun) -> None:
        self._examination = None
        code, said = run.conclude()
        if code == PROGRESSES:
            for track in self._tracks.values():
                track.learn()
        if code in (PROGRESSES, NOBODY):
            return
        if code == FOUND:
            self.stalls += 1
            self._tell(said)
            self._record.stall(f"diagnosis-{self.stalls}.json")
            self.keep_samples()
            return
        why = f"it took over {EXAMINE_S:g} s" if code < 0 else said.strip() or f"exit {code}"
        self._once.say(
            "examine",
            f"{self._quiet}, and why could not be looked into ({why}); "
            f"try: preflight diagnose --pid={self._launch}",
        )

    @property
    def _quiet(self) -> str:
        return f"half or more of the ranks here did next to nothing for {self._window_s:g} s"

    def _tell(self, said: str) -> None:
        """What was found; the same again is one line."""
        where = f"\nsee {self._folder}" if self._folder else ""
        what = said.partition("\nproof")[0]
        if what == self._told:
            say(f"still no progress, for the same reason{where}")
            return
        self._told, self._told_of = what, frozenset(self._tracks)
        say(f"{self._quiet}\n{said.rstrip()}{where}")

    def _take_back(self) -> None:
        """Say that a stall that was told is over; ranks that end, or are new, do not go on."""
        if self._told and self._told_of and self._told_of == frozenset(self._tracks):
            say("the ranks are at work again")
            self._told = ""


def say(text: str) -> None:
    """Say it; where nobody can hear it, nothing happens: the launch goes on.

    Control characters, which names of files and processes can hold, do not reach the terminal.
    """
    lines = (
        "".join(char if char.isprintable() else " " for char in line) for line in text.splitlines()
    )
    shown = "".join(f"preflight: {line}".rstrip() + "\n" for line in lines)
    if os.isatty(2):
        shown = "\n" + shown  # behind a progress bar
    with suppress(OSError):
        os.write(2, shown.encode("utf-8", "replace"))


class Once:
    """Says each kind of trouble one time."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, kind: str, text: str) -> None:
        """Say it, unless something of that kind was said."""
        if kind not in self._said:
            self._said.add(kind)
            say(text)
