"""One watched launch, from its start to our own end in its way."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from preflight.watching import folder as folders
from preflight.watching import signals
from preflight.watching.children import Children
from preflight.watching.closing import Closing
from preflight.watching.model import STALLED_AFTER_S, Options
from preflight.watching.nccl_files import set_in_files
from preflight.watching.output import Output
from preflight.watching.record import Record
from preflight.watching.relay import Relay, end_as
from preflight.watching.saying import Once, say
from preflight.watching.settings import Plan, plan
from preflight.watching.torch_names import outdated
from preflight.watching.watcher import Watcher
from preflight.watching.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from preflight.watching.janitor import Janitor

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
    window_s = stalled_after_s(options, os.environ.get("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"))
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
        os.environ,
        set_in_files(os.environ),
        str(folder or ""),
        options.debug,
        pipes=pipes,
        outdated=outdated(options.command[0], os.environ),
    )


def stalled_after_s(options: Options, heartbeat_s: str | None) -> float:
    """As typed; else the usual, or half of a shorter heartbeat, which would end the job before."""
    if options.stalled_after_s is not None:
        return options.stalled_after_s
    if heartbeat_s and heartbeat_s.isascii() and heartbeat_s.isdecimal() and int(heartbeat_s):
        return min(STALLED_AFTER_S, int(heartbeat_s) / 2)
    return STALLED_AFTER_S


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
    return children.start(options.command, decided.environ(os.environ), actions)


def _janitor(options: Options, folder: Path | None) -> Janitor | None:
    if folder is None or not (options.debug or options.tee):
        return None
    from preflight.watching.janitor import Cap, Janitor

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
