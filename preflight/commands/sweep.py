"""`preflight sweep`: judge a whole fleet by night, a wave of idle nodes at a time.

Started isolated, as `preflight run` is: `python -I -m preflight.commands.sweep WORDS...`.
"""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from preflight.commands.nightly.begin import (
    Asked,
    begin,
    cut_short,
    end_of,
    read_words,
    say_what,
    who_for,
)
from preflight.commands.nightly.conclude import conclude, outputs_of
from preflight.commands.nightly.screen import Screen
from preflight.commands.nightly.state import former_nights, new_folder
from preflight.commands.nightly.sweeper import LEAVE_S, Sweeper, ends_at, locked
from preflight.core.interrupt import Interrupts
from preflight.core.text import legible, printable
from preflight.errors import PreflightError, UsageError
from preflight.fleet.nodeset import fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.commands.nightly.state import Former

USAGE, INTERRUPTED, BROKE, NOBODY = 4, 2, 3, 5


def main(argv: Sequence[str]) -> int:
    """Sweep; the exit codes are those of a run, over all waves."""
    try:
        return _sweep(read_words(argv))
    except UsageError as error:
        return _gives_up(error, USAGE)
    except PreflightError as error:
        return _gives_up(error, BROKE)
    except KeyboardInterrupt:
        return INTERRUPTED


def _gives_up(error: PreflightError, code: int) -> int:
    print(f"preflight sweep: {printable(str(error))}", file=sys.stderr)  # noqa: T201  a command
    return code


def _sweep(asked: Asked) -> int:
    now = datetime.now().astimezone()
    ends = ends_at(asked.until, asked.budget, now)
    into = Path.cwd() / Path(asked.into).expanduser()
    if asked.plan:
        return _show_plan(asked, ends, into)
    with locked(into, wait_s=2 * LEAVE_S if asked.resume else 0.0) as lock:
        before = cut_short(asked, into) if asked.resume else None
        who = who_for(asked, before[1] if before else None)
        folder, sweep = before or (new_folder(into, time.time()), begin(asked, who, into))
        sweep = replace(sweep, ends_s=end_of(ends, sweep, who))
        outputs = outputs_of(folder, sweep)
        outputs.refuse_unusable()
        former = former_nights(into, but=sweep.sweep)
        screen = Screen()
        say_what(screen, sweep, outputs.shown, who, resumed=before is not None)
        if not sweep.waves:
            screen.line("nothing to check: no node is idle")
            return NOBODY
        sweeper = Sweeper(folder, sweep, who, screen, lock)
        interrupted = _interrupted(sweeper, former)
        if sweeper.trouble:
            screen.labelled("stopped", sweeper.trouble)
        return conclude(
            folder, sweeper.sweep, former, screen,
            stopped=_why_stopped(sweeper, interrupted=interrupted), interrupted=interrupted,
        )  # fmt: skip


def _interrupted(sweeper: Sweeper, former: tuple[Former, ...]) -> bool:
    """Run the waves; whether Ctrl-C or SIGTERM ended them."""
    interrupts = Interrupts()
    interrupts.hold()
    try:
        sweeper.run(former)
    except KeyboardInterrupt:
        return True
    finally:
        interrupts.let_go()
    return False


def _why_stopped(sweeper: Sweeper, *, interrupted: bool) -> str:
    if interrupted:
        return "the sweep was interrupted"
    if sweeper.time_up:
        return "the time was up"
    return f"the sweep stopped: {legible(sweeper.trouble, 80)}" if sweeper.trouble else ""


def _show_plan(asked: Asked, ends: datetime | None, into: Path) -> int:
    """Show tonight's waves; Slurm is asked, no node is."""
    who = who_for(asked, None)
    sweep = begin(asked, who, into)
    sweep = replace(sweep, ends_s=end_of(ends, sweep, who))
    screen = Screen()
    folder = new_folder(into, time.time())
    say_what(screen, sweep, outputs_of(folder, sweep).shown, who, resumed=False)
    for number, wave in enumerate(sweep.waves, 1):
        screen.labelled(
            f"wave {number}/{len(sweep.waves)}", f"{fold(wave.nodes)}  {len(wave.nodes)}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
