"""One job for many situations: a new one is launched only where the last was not brought back."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Self

from tests.lab.hangs.job import HangingJob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from tests.lab.cluster import Lab
    from tests.lab.hangs.situations import Situation


class KeptJob:
    """`with KeptJob(lab) as kept, kept.hanging(situation) as job: ...`."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._held = ExitStack()
        self._job: HangingJob | None = None
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.drop()

    @contextmanager
    def hanging(self, situation: Situation) -> Iterator[HangingJob]:
        """Bring the job there; it goes on after that, if it can."""
        if self._ended and (situation.fresh or not situation.final):
            self.drop()
        job = self._job = self._job or self._held.enter_context(HangingJob(self._lab))
        self._ended = situation.final
        try:
            with situation.way(job, situation.ranks):
                yield job
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """End the job; the next situation has a new one."""
        self._held.close()
        self._job, self._ended = None, False
