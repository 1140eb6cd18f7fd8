"""How a job is brought to hang, and back: each way is a context in which it hangs."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeAlias

from tests.lab import processes, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lab.hangs.job import HangingJob

    Way: TypeAlias = Callable[[HangingJob, tuple[int, ...]], AbstractContextManager[None]]
    """Of a job, and the ranks that go astray."""


@contextmanager
def healthy(job: HangingJob, _ranks: tuple[int, ...]) -> Iterator[None]:
    """Nothing is wrong."""
    job.progressing()
    yield


@contextmanager
def dataloader(job: HangingJob, ranks: tuple[int, ...]) -> Iterator[None]:
    """The worker process of a rank's DataLoader reads from a storage that does not answer."""
    job.tell("dataloader", *ranks)
    job.standing()
    yield
    job.order("", *ranks)
    job.serve()
    job.progressing()


@contextmanager
def prepare(job: HangingJob, ranks: tuple[int, ...]) -> Iterator[None]:
    """At the start a rank still prepares its data, and the others look for it."""
    job.order("prepare", *ranks)
    job.break_connections()
    job.arrived(*ranks)
    job.standing()
    yield
    job.order("", *ranks)
    job.serve()
    job.progressing()


@contextmanager
def stopped(job: HangingJob, ranks: tuple[int, ...]) -> Iterator[None]:
    """A rank is stopped, as by a debugger or Ctrl-Z."""
    for rank in ranks:
        job.signal(rank, "STOP")
    try:
        job.standing()
        yield
    finally:
        for rank in ranks:
            job.signal(rank, "CONT")
    job.progressing()


@contextmanager
def checkpoint(job: HangingJob, ranks: tuple[int, ...]) -> Iterator[None]:
    """Rank 0 writes to a disk that has frozen: it is in D state, and the others in a barrier."""
    with processes.frozen_disk(job.host(0)):
        try:
            job.tell("checkpoint", *ranks)
            job.standing()
            yield
        finally:
            job.order("", *ranks)
    job.progressing()


@contextmanager
def evaluation(job: HangingJob, ranks: tuple[int, ...]) -> Iterator[None]:
    """Rank 0 evaluates for longer than the others' time-out will let it."""
    job.tell("evaluation", *ranks)
    job.standing()
    yield
    job.order("", *ranks)
    job.progressing()


def _mixed_up(word: str) -> Way:
    @contextmanager
    def way(job: HangingJob, ranks: tuple[int, ...]) -> Iterator[None]:
        """Ranks are in collectives that do not belong together, for good."""
        job.tell(word, *ranks)
        job.standing()
        yield
        job.order("", *ranks)
        job.break_connections()
        job.progressing()

    return way


desync, skipped, exhausted = map(_mixed_up, ("desync", "skipped", "exhausted"))


@contextmanager
def shapes(job: HangingJob, ranks: tuple[int, ...]) -> Iterator[None]:
    """One rank's tensor is empty, which only torch's flight recorder knows; all have written it."""
    job.recorder.mkdir()
    try:
        with _mixed_up("shapes")(job, ranks):
            job.recorded()
            yield
    finally:
        unwanted = job.recorder.with_name("recorded")
        job.recorder.rename(unwanted)  # at once: ranks may be writing there
        shutil.rmtree(unwanted)


@contextmanager
def slow(job: HangingJob, ranks: tuple[int, ...]) -> Iterator[None]:
    """Some ranks compute for a hundred times as long; all go on, at their pace."""
    job.tell("slow", *ranks)
    job.progressing()
    yield
    job.order("", *ranks)
    job.progressing()


# -- the wire


def path(job: HangingJob, ranks: tuple[int, ...]) -> AbstractContextManager[None]:
    """Between the hosts of two ranks nothing gets through any more."""
    one, other = (job.host(rank) for rank in ranks)
    return _cut(job, wire.cut_path(one, other))


def fabric(job: HangingJob, ranks: tuple[int, ...]) -> AbstractContextManager[None]:
    """One host can be logged in to, and its ranks reach nobody."""
    return _cut(job, wire.cut_fabric(job.host(*ranks)))


def unreachable(job: HangingJob, ranks: tuple[int, ...]) -> AbstractContextManager[None]:
    """One host is not there any more, for ranks and logins."""
    return _cut(job, wire.dead_link(job.host(*ranks)))


@contextmanager
def _cut(job: HangingJob, fault: AbstractContextManager[None]) -> Iterator[None]:
    with fault:
        job.standing()
        yield
    job.break_connections()
    job.progressing()


# -- the end of a rank, and so of the job


@contextmanager
def zombie(job: HangingJob, ranks: tuple[int, ...]) -> Iterator[None]:
    """A rank is killed while its torchrun is stopped: nobody buries it, nobody tells the others."""
    job.next_attempt()
    for rank in ranks:
        job.agent(rank).signal("STOP")
        job.signal(rank, "KILL")
    job.standing()
    yield


@contextmanager
def killed(job: HangingJob, ranks: tuple[int, ...]) -> Iterator[None]:
    """A rank is killed; its torchrun ends its neighbour and leaves, and the other hosts wait on."""
    job.next_attempt()
    for rank in ranks:
        job.signal(rank, "KILL")
        job.agent(rank).signal("CONT")
        job.left(rank)
    job.standing()
    yield


@contextmanager
def out_of_memory(job: HangingJob, ranks: tuple[int, ...]) -> Iterator[None]:
    """The same, and the kernel's log says that it was for memory."""
    with killed(job, ranks):
        for rank in ranks:
            job.host(rank).kernel_says(
                f"Out of memory: Killed process {job.pid(rank)} (python) total-vm:92342112kB, "
                "anon-rss:65231104kB, file-rss:2048kB, shmem-rss:0kB, UID:0 pgtables:131072kB "
                "oom_score_adj:0"
            )
        yield


@contextmanager
def orphaned(job: HangingJob, ranks: tuple[int, ...]) -> Iterator[None]:
    """A torchrun is killed, then one of its ranks: nothing is left of both, the other lives."""
    job.next_attempt()
    for rank in ranks:
        job.agent(rank).kill()
        job.signal(rank, "KILL")
    job.standing()
    yield
