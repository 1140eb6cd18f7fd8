"""One watched launch, from its start to our own end in its way."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from preflight.core.text import whole
from preflight.hang.watch import folder as folders
from preflight.hang.watch import signals
from preflight.hang.watch.folder import FOUND, STALLED_AFTER_S, Once, Options, Record, say
from preflight.hang.watch.output import Output, logs
from preflight.hang.watch.processes import Children
from preflight.hang.watch.settings import RECORDER_FOLDER, Plan, outdated, plan, set_in_files
from preflight.hang.watch.signals import Errand, Relay, Witness, end_as
from preflight.hang.watch.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from preflight.hang.watch.output import Janitor


EXPLAIN_S = 60.0


class Closing:
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

    def close(self, status: int, watcher: Watcher, janitor: Janitor | None, *, asked: bool) -> None:
        """Keep what a person may want, take away the rest. OSError where the disk is full.

        `asked`: whether somebody ended the launch on purpose, who need not be told why it ended.
        """
        if janitor is not None:
            janitor.close()
        failed = status != 0 and not asked
        if not (failed or watcher.stalls or self._wanted()):
            folders.remove(self._folder)
            return
        self._record.ended(status)
        kept = self._output.keep(self._folder)
        if failed:
            watcher.keep_samples()
            self._tell(status, logs(self._folder, kept), in_a_stall=watcher.in_a_stall)
        folders.tidy(self._folder)

    def _wanted(self) -> bool:
        told = self._options
        return bool(
            told.keep or told.debug or told.tee
            or any((self._folder / RECORDER_FOLDER).glob("*[0-9]"))
        )  # fmt: skip

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
        words = ["preflight.hang.watch.explaining", str(self._folder), *map(str, files)]
        errand = Errand(self._children, words, EXPLAIN_S)
        while not errand.over():
            came = signals.wait(1.0)
            if came is not None and came.number in signals.ENDING:
                break
        code, said = errand.conclude()
        return said.rstrip() if code == FOUND else ""


def _words(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"by signal {os.WTERMSIG(status)}"
    return f"with exit code {os.waitstatus_to_exitcode(status)}"


NOT_FOUND, NOT_RUNNABLE = 127, 126
"""As a shell, env and timeout say it."""

_DIRECT = ("accelerate", "python", "torchrun")
"""Launchers whose ranks run on this node, with this node's folders."""


def watch(options: Options) -> int:
    """Run the command and watch it; the exit code, or our death by the launch's signal."""
    children = Children(signals.block())
    witness = Witness(children, signals.PASSED)
    folder = _make(options.base)
    decided = decide(options, folder)
    window_s = stalled_after_s(options)
    output, record = Output(), Record(folder, options.command, decided)
    try:
        launch = _start(options, folder, decided, children, output)
    except OSError as error:
        witness.dismiss()
        if folder is not None:
            folders.remove(folder)
        say(f"{options.command[0]} cannot be started: {error.strerror}; check its name and path")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE
    output.let_go()
    watcher = Watcher(
        launch,
        children,
        folder,
        record,
        stalled_after_s=window_s,
        others=(options.nodes, options.inventory),
    )
    desk = _Desk(Relay(launch, children, witness), watcher, _janitor(options, folder))
    desk.guarded(record.write)
    if decided.left:
        names = ", ".join(dict.fromkeys(one.settled_by for one in decided.left))
        say(f"left as you set it: {names}")
    status = desk.sit(launch, children)
    witness.dismiss()
    desk.guarded(watcher.end)
    output.finish(children)
    if folder is not None:
        closing = Closing(options, folder, record, output, children)
        asked = desk.relay.asked_to_end
        desk.guarded(lambda: closing.close(status, watcher, desk.janitor, asked=asked))
    return end_as(status)


def decide(options: Options, folder: Path | None) -> Plan:
    """What the launch's environment gets."""
    pipes = (
        folder is not None
        and os.path.basename(options.command[0]).rstrip(".0123456789") in _DIRECT  # noqa: PTH119
        and folders.makes_pipes(folder)
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
        return folders.make(base)
    except OSError as error:
        say(
            f"no evidence can be kept in {base} ({error.strerror or error}): the launch goes on "
            "without; --folder names another place"
        )
        return None


def _start(
    options: Options, folder: Path | None, decided: Plan, children: Children, output: Output
) -> int:
    actions: list[tuple[Any, ...]] = []
    if options.tee and folder is not None:
        actions = output.tee(children, folder)
    return children.start(options.command, decided.environ(options.environ), actions)


def _janitor(options: Options, folder: Path | None) -> Janitor | None:
    if folder is None or not (options.debug or options.tee):
        return None
    from preflight.hang.watch.output import Cap, Janitor

    return Janitor([folder], Cap(options.cap_mib << 20))


class _Desk:
    """Where a watch sits while the launch runs."""

    def __init__(self, relay: Relay, watcher: Watcher, janitor: Janitor | None) -> None:
        self.relay, self._watcher, self.janitor = relay, watcher, janitor
        self._once = Once()

    def sit(self, launch: int, children: Children) -> int:
        """Until the launch has ended: pass on, look, sweep. How it ended, as waitpid tells it."""
        look_s = sweep_s = time.monotonic()
        while True:
            children.reap()
            status = children.status(launch)
            if status is not None:
                return status
            now = time.monotonic()
            if now >= look_s:
                self.guarded(self._watcher.look)
                look_s = time.monotonic() + self._watcher.every_s
            if self.janitor and now >= sweep_s:
                self.guarded(self.janitor.sweep)
                sweep_s = time.monotonic() + self.janitor.every_s
            until = min(look_s, sweep_s) if self.janitor else look_s
            came = signals.wait(until - time.monotonic())
            if came is not None and came.number in signals.PASSED:
                self.relay.take(came)

    def guarded(self, work: Callable[[], object]) -> None:
        """Do it; whatever goes wrong with the watching, the launch goes on."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  a fault of ours must not end a job of days
            self._once.say(
                type(error).__name__,
                f"a part of the watching failed ({type(error).__name__}: {error}); "
                "the launch goes on",
            )
