"""Watches one launch from start to end, and exits as it did."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from preflight.core.text import sanitize, whole
from preflight.hang.watch import evidence, signals
from preflight.hang.watch.output import Cap, Output, Trimmer, logs
from preflight.hang.watch.progress import Known, RankProcess, Track, ranks_of, readings_of, stalled
from preflight.hang.watch.signals import Children, ModuleRun, Relay, Witness, end_as

STALLED_AFTER_S = 300.0
"""Less than all of torch's limits, which end the job and its evidence: 480 s (NCCL's heartbeat),
10 min (NCCL's collectives), 30 min (gloo's)."""

SHORTEST_S = 2.0
CAP_MIB = 256


class Options(NamedTuple):
    """The options of the command line."""

    command: tuple[str, ...]
    base: Path
    """The folder in which the evidence's own folder is made."""
    debug: frozenset[str] = frozenset()
    cap_mib: int = CAP_MIB
    """The limit of each debug file."""
    stalled_after_s: float | None = None
    tee: bool = False
    keep: bool = False
    nodes: str = ""
    """The job's nodes (or `inventory`): the node of rank 0 looks at them, too."""
    inventory: str = ""
    ras: str = "auto"
    """Whether an examination asks NCCL's RAS service (`preflight.hang.look.RasPolicy`)."""
    environ: Mapping[str, str] = os.environ
    """The launch's environment. As root the watch's own has less (`preflight.commands`)."""


NOT_FOUND, NOT_RUNNABLE = 127, 126
"""Exit codes of a shell, env and timeout."""

_DIRECT = ("accelerate", "python", "torchrun")
"""Launchers whose ranks run on this node and see its folders."""

EXPLAIN_S = 60.0


def watch(options: Options) -> int:
    """Run the command and watch it; return its exit code, or die by its signal."""
    children = Children(signals.block())
    witness = Witness(children)
    made, folder = evidence.new_folders(options.base), _make_evidence_folder(options.base)
    variables = _plan_variables(options, folder)
    output, record = Output(), evidence.Record(folder, options.command, variables)
    try:
        copies = output.tee(children, folder) if options.tee and folder is not None else []
        launch = children.start(options.command, variables.environ(options.environ), copies)
    except OSError as error:
        witness.dismiss()
        if folder is not None:
            evidence.discard(folder, made)
        report(f"{options.command[0]} cannot be started: {error.strerror}; check its name and path")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE
    output.close_pipes()
    watcher = Watcher(launch, children, record, options)
    relay = Relay(launch, children, witness)
    writes_logs = options.debug or options.tee
    trimmer = Trimmer(folder, Cap(options.cap_mib << 20)) if folder and writes_logs else None
    once = Once()
    once.guard(record.write)
    if variables.left:
        names = ", ".join(dict.fromkeys(variable.settled_by for variable in variables.left))
        report(f"left as you set it: {names}")
    status = _wait_for_end(launch, watcher, trimmer, relay, once)
    witness.dismiss()
    once.guard(watcher.end)
    output.finish(children)
    if folder is not None:
        failed = status != 0 and not relay.asked_to_end
        once.guard(
            lambda: _keep_or_discard(
                options, folder, output, watcher, status, trimmer=trimmer, failed=failed, made=made
            )
        )
    return end_as(status)


def _wait_for_end(
    launch: int, watcher: Watcher, trimmer: Trimmer | None, relay: Relay, once: Once
) -> int:
    """Look at the ranks, limit the logs and pass signals on until the launch ends; its status."""
    look_s = trim_s = time.monotonic()
    while True:
        watcher.children.reap()
        if (status := watcher.children.status(launch)) is not None:
            return status
        now = time.monotonic()
        if now >= look_s:
            once.guard(watcher.look)
            look_s = time.monotonic() + watcher.every_s
        if trimmer and now >= trim_s:
            once.guard(trimmer.sweep)
            trim_s = time.monotonic() + trimmer.every_s
        received = signals.wait((min(look_s, trim_s) if trimmer else look_s) - time.monotonic())
        if received is not None and received.number in signals.PASSED:
            relay.take(received)


def _plan_variables(options: Options, folder: Path | None) -> evidence.Plan:
    """Decide which variables to set for the launch."""
    launcher = Path(options.command[0]).name.rstrip(".0123456789")
    pipes = folder is not None and launcher in _DIRECT and evidence.makes_pipes(folder)
    return evidence.plan(
        options.environ,
        evidence.set_in_files(options.environ),
        str(folder or ""),
        options.debug,
        pipes=pipes,
        outdated=evidence.outdated(options.command[0], options.environ),
    )


def stalled_after_s(options: Options) -> float:
    """As typed; otherwise the default, or half of a shorter heartbeat, which would end the job."""
    if options.stalled_after_s is not None:
        return options.stalled_after_s
    heartbeat_s = whole(options.environ.get("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", ""))
    return min(STALLED_AFTER_S, heartbeat_s / 2) if heartbeat_s else STALLED_AFTER_S


def _make_evidence_folder(base: Path) -> Path | None:
    try:
        return evidence.make_folder(base)
    except OSError as error:
        report(
            f"cannot write evidence to {base} ({error.strerror or error}): the launch goes on "
            "without it; give another place with --folder=DIR"
        )
        return None


def _keep_or_discard(
    options: Options,
    folder: Path,
    output: Output,
    watcher: Watcher,
    status: int,
    *,
    trimmer: Trimmer | None,
    failed: bool,
    made: Sequence[Path],
) -> None:
    """Keep what a person may want, remove the rest. OSError if the disk is full.

    `failed`: it failed, and not because a user ended it on purpose: then its end is explained.
    `made`: the folders that were made for it.
    """
    if trimmer is not None:
        trimmer.close()
    dumps = (folder / evidence.RECORDER_FOLDER).glob("*[0-9]")
    keep = options.keep or options.debug or options.tee or any(dumps)
    if not (failed or watcher.stalls or keep):
        evidence.discard(folder, made)
        return
    watcher.record.ended(status, stalled=status != 0 and watcher.in_a_stall)
    copies = output.keep(folder)
    if failed:
        watcher.record.write_samples(watcher.samples)
        ended = f"the launch ended {evidence.end_words(os.waitstatus_to_exitcode(status))}"
        is_echo = watcher.in_a_stall  # probably: the stall was reported
        why = "its output was not captured: rerun with --tee to explain it"
        if files := logs(folder, copies):
            why = _explained(watcher.children, folder, files)
        if is_echo:
            report(f"{ended}, after the stall reported above; see {folder}")
        else:
            report(f"{ended}; see {folder}\n{why}".rstrip())
    evidence.tidy(folder)


def _explained(children: Children, folder: Path, files: list[Path]) -> str:
    """The explanation of the launch's end from these files; empty if unknown."""
    run = ModuleRun(children, EXAMINE, ["end", str(folder), *map(str, files)], EXPLAIN_S)
    while not run.over():
        received = signals.wait(1.0)
        if received is not None and received.number in signals.ENDING:
            break
    code, output = run.conclude()
    return output.rstrip() if code == evidence.FOUND else ""


ANSWER_S = 2.5
"""torch reads its pipe once a second (TORCH_NCCL_COORD_CHECK_MILSEC), then writes."""

_PERIOD_S = 5.0
_LOOKS = 20
"""The least number of looks in a window."""

_LOOKS_PER_SEARCH = 6
"""Looks between searches for new ranks; a missing rank starts a search at once."""

_MOST_SAMPLES = 4096
_LONGEST_WAIT_S = 3600.0
_ENDS_S = 60.0
"""Chosen: torchrun gives its ranks 30 s to end when one has."""

_STALL_WORDS = "half or more of the ranks here did almost nothing for {:g} s"
EXAMINE_S = 90.0
EXAMINE = "preflight.hang.watch.examine"


class Watcher:
    """Looks at the ranks every few seconds, and starts an examination when they stop.

    A stop is only a suspicion; the ranks' stacks decide.
    """

    def __init__(
        self, launch: int, children: Children, record: evidence.Record, options: Options
    ) -> None:
        self._launch, self.children, self._folder = launch, children, record.folder
        self.record, self._options = record, options
        self._window_s = stalled_after_s(options)
        self._stall_words = _STALL_WORDS.format(self._window_s)
        self.every_s = min(_PERIOD_S, self._window_s / _LOOKS)
        """When to call `look` next."""
        self.stalls = 0
        """How many stalls were found and reported."""
        self._tracks: dict[RankProcess, Track] = {}
        self.samples: deque[tuple[object, ...]] = deque(maxlen=_MOST_SAMPLES)
        self._looked_s = self._examine_s = self._quiet_s = 0.0  # when that was, or will be
        self._looks = self._examinations = 0
        self._examination: ModuleRun | None = None
        self._requested_s: float | None = None
        self._reported = ""
        self._reported_ranks: frozenset[RankProcess] = frozenset()
        self._known: Known = {}
        self._once = Once()

    def look(self) -> None:
        """Look at every rank once. The caller handles OSError and all other errors."""
        now = time.monotonic()
        if self._looked_s and now - self._looked_s > 3 * self.every_s + 1:
            for track in self._tracks.values():
                track.forget()  # the watch was stopped, and so was the launch
        self._looked_s = now
        self._sample(now)
        if quiet := stalled(self._tracks.values()):
            self._quiet_s = now
        if self._examination is not None:
            if self._examination.over():
                self._conclude(self._examination)
        elif self._requested_s is not None:
            if now >= self._requested_s + ANSWER_S:
                self._examine()
        elif not quiet:
            self._examinations, self._examine_s = 0, 0.0
            self._report_recovery()
        elif now >= self._examine_s:
            self._request_dumps(now)

    def end(self) -> None:
        """Report a finished examination at the launch's end; discard one that still runs."""
        if self._examination is None:
            return
        if self._examination.over():
            self._conclude(self._examination)
        else:
            self._examination.conclude()

    @property
    def in_a_stall(self) -> bool:
        """Whether a reported stall lasted until the launch ended or began to end."""
        return self.stalls > 0 and time.monotonic() - self._quiet_s < _ENDS_S

    def _sample(self, now: float) -> None:
        search = self._looks % _LOOKS_PER_SEARCH == 0
        self._looks += 1
        search |= not self._read(list(self._tracks), now)
        if not search:
            return
        ranks = set(ranks_of(self._launch, known=self._known))
        new = sorted(ranks - set(self._tracks), key=lambda process: process.pid)
        self._tracks = {
            process: track for process, track in self._tracks.items() if process in ranks
        }
        self._tracks.update((process, Track(self._window_s)) for process in new)
        self._read(new, now)

    def _read(self, ranks: Sequence[RankProcess], now: float) -> bool:
        """Look at these ranks; return whether all of them are there."""
        readings = readings_of(process.pid for process in ranks)
        for process in ranks:
            reading = readings[process.pid]
            if reading is not None:
                self._tracks[process].add(now, reading)
                at_s = round(time.time(), 1)
                self.samples.append((at_s, process.rank, process.pid, *reading[1:]))
        return None not in readings.values()

    def _request_dumps(self, now: float) -> None:
        """Request the dumps first, so that they exist before the examination."""
        self._examinations += 1
        self._examine_s = now + min(self._window_s * 2**self._examinations, _LONGEST_WAIT_S)
        if self._folder is not None and evidence.ask_for_dumps(self._folder):
            self._requested_s = now
        else:
            self._examine()

    def _examine(self) -> None:
        self._requested_s = None
        words = ["stall", str(self._launch), str(self.stalls + 1), str(self._folder or "")]
        words += [self._options.nodes, self._options.inventory, self._options.ras]
        self._examination = ModuleRun(self.children, EXAMINE, words, EXAMINE_S)

    def _conclude(self, run: ModuleRun) -> None:
        self._examination = None
        code, output = run.conclude()
        if code == evidence.PROGRESSES:
            for track in self._tracks.values():
                track.learn()
        if code in (evidence.PROGRESSES, evidence.NO_RANKS):
            return
        if code == evidence.FOUND:
            self.stalls += 1
            self._report(output)
            self.record.stall(evidence.DIAGNOSIS.format(self.stalls))
            self.record.write_samples(self.samples)
            return
        why = f"it took over {EXAMINE_S:g} s" if code < 0 else output.strip() or f"exit {code}"
        self._once.report(
            "examine",
            f"{self._stall_words}; the examination failed ({why}); "
            f"try: preflight diagnose --pid={self._launch}",
        )

    def _report(self, answer: str) -> None:
        """Report the diagnosis; the same one again takes one line."""
        where = f"\nsee {self._folder}" if self._folder else ""
        reason = answer.partition("\nproof")[0]
        if reason == self._reported:
            report(f"still no progress, for the same reason{where}")
            return
        self._reported, self._reported_ranks = reason, frozenset(self._tracks)
        report(f"{self._stall_words}\n{answer.rstrip()}{where}")

    def _report_recovery(self) -> None:
        """Report the end of a reported stall, if the same ranks work again."""
        ranks = frozenset(self._tracks)
        if self._reported and ranks and ranks == self._reported_ranks:
            report("the ranks are at work again")
            self._reported = ""


def report(text: str) -> None:
    """Print a message to stderr; errors are ignored: the launch goes on.

    Control characters, which names of files and processes can contain, do not reach the terminal.
    """
    message = "".join(f"preflight: {sanitize(line)}".rstrip() + "\n" for line in text.splitlines())
    if os.isatty(2):
        message = "\n" + message  # after a progress bar
    with suppress(OSError):
        os.write(2, message.encode("utf-8", "replace"))


class Once:
    """Reports each kind of problem once."""

    def __init__(self) -> None:
        self._printed: set[str] = set()

    def report(self, kind: str, text: str) -> None:
        """Print the message, unless one of that kind was printed."""
        if kind not in self._printed:
            self._printed.add(kind)
            report(text)

    def guard(self, work: Callable[[], object]) -> None:
        """Do a part of the watch; if it fails, report that, and the launch goes on."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  a bug of preflight must not end a job of days
            kind = type(error).__name__
            self.report(kind, f"a part of the watch failed ({kind}: {error}); the launch goes on")
