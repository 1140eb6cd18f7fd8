"""What earlier runs say: the one door for reports and commands, without a database behind it shut.

    from preflight.history.place import place_of
    from preflight.history.reading import reading

    with reading(place_of("/srv/nightly", Path.cwd())) as history:  # or "postgresql://..."
        ran = history.last_run()                      # told.Ran, None if there is none
        ran = history.last_run(["gpu041", "gpu042"])  # of exactly these nodes
        ran = history.run(report.run)                 # by its nonce in report.json
        changes = history.changes(ran)                # told.Changes: new, still, recovered, unseen
        changes = history.changes(ran, since=history.since(ran))  # a sweep's waves: one night
        history.trend("gpu041", "gemm_tflops")        # told.Trend, one per GPU of the node
        history.measures("gpu041")                    # which measures there are
        history.worst(nights=30, most=20)             # told.Standing, the worst first
        history.node("gpu041"), history.gpu("GPU-4f")  # told.NodePast, told.GpuPast, or None
        history.runs(most=30)                         # told.Ran, the latest first

All values are frozen (`history/told.py`). A folder without a history has no runs: `last_run()` is
None, and so on. `HistoryError` (a UsageError, one line) for one that cannot be read: a run or a
report says that line and goes on without. SQLAlchemy is loaded by `reading`, not by this module.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from preflight.history.place import there

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preflight.history.place import Place
    from preflight.history.queries import History


@contextmanager
def reading(place: Place) -> Iterator[History]:
    """Hold a history open to read: everything is told as of one moment, whoever writes meanwhile.

    One of an older schema is brought up to date first. HistoryError if it cannot be read.
    """
    from preflight.history.queries import History
    from preflight.history.tables import known_schema, newest, prepare, transaction

    if not there(place):
        yield History(None)
        return
    with transaction(place, writes=False) as connection:
        found = known_schema(connection, place)
    if 0 < found < newest():
        with transaction(place, writes=True) as connection:
            prepare(connection, place)
    with transaction(place, writes=False) as connection:
        yield History(connection if found else None)
