"""Six real hosts, all pairs: each fault of wire and worker is named, nobody healthy is.

A fleet seldom has one fault only, so some are planted together; each is asserted by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab.cluster import Lab, why_not
from tests.lab.named import named
from tests.lab.planted import Fault, planted
from tests.stories.blaming import blame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.stories.conftest import Told

pytestmark = pytest.mark.lab

_PATIENT = ("--preflight-budget=240", "--preflight-seed=8")
"""The hosts share the cores of one machine, perhaps with others."""


@pytest.fixture(scope="module")
def six() -> Iterator[Lab]:
    """Six healthy hosts."""
    if reason := why_not():
        pytest.skip(reason)
    with Lab(hosts=6) as lab:
        yield lab


@pytest.fixture
def judge(preflight: Callable[..., Told], six: Lab) -> Callable[..., Told]:
    """Plant faults, judge the six hosts, and hold to them whom the run names."""

    def run(*faults: Fault) -> Told:
        words = (f"--preflight-inventory={six.inventory()}", "--preflight-fail-fast=never")
        with planted(six, *faults):
            told = preflight(*words, *_PATIENT, "--preflight-nodes=h[1-6]")
        assert told.exit == 1, told.out
        assert named(told.folder).right(faults), told.out
        again = blame(told.folder).document
        assert again["blames"] == told.report["blames"]
        return told

    return run


def _headings(told: Told) -> set[str]:
    """Of the findings in the summary, one per cause; a line with a colon is from the progress.

    What comes and goes may be bad enough to fail, on a busy machine: its outcome is left out.
    """
    lines = [line for line in told.out.splitlines() if line.startswith(("FAIL", "FLAKY"))]
    found = [line.split(None, 1)[1] for line in lines if ": " not in line]
    assert len(found) == len(set(found))
    return set(found)


@pytest.mark.proves("fabric.allreduce", finds="a slow link")
@pytest.mark.proves("fabric.allreduce", finds="a killed worker")
@pytest.mark.proves("fabric.allreduce", finds="a firewall between two hosts only")
def test_a_slow_link_a_killed_worker_and_a_shut_path(judge: Callable[..., Told]) -> None:
    """Two nodes to leave out, and two fine ones that must not be in one job."""
    told = judge(
        Fault("slow link", ("h2",)),
        Fault("killed worker", ("h6",)),
        Fault("firewall", ("h4", "h5")),
    )
    assert _headings(told) == {
        "h2  fabric.allreduce",
        "h6  fabric.allreduce",
        "pair h4-h5  net.ports  (also fabric.allreduce)",
    }
    assert told.report["fleet"]["not_ready"] == ["h2", "h6"]
    assert told.report["fleet"]["apart"] == [["h4", "h5"]]
    assert (told.folder / "ready.hosts").read_text() == "h1\nh3\nh4\n"
    assert "its measuring process was killed by SIGKILL" in " ".join(told.out.split())
    assert "do: look at the kernel log on h6 for out-of-memory kills" in told.out
    assert "\npage " in told.out
    assert "Blamed: h2, h6, pair h4-h5<" in (told.folder / "report.html").read_text()


@pytest.mark.proves("fabric.allreduce", finds="a lossy link")
@pytest.mark.proves("fabric.allreduce", finds="a hung worker")
def test_a_lossy_link_and_a_hung_worker(judge: Callable[..., Told]) -> None:
    """What is lost now and then is counted; of two that hang, who stands still is named."""
    told = judge(Fault("lossy link", ("h3",)), Fault("hung worker", ("h6",)))
    assert _headings(told) == {"h3  fabric.allreduce", "h6  fabric.allreduce"}
    said = " ".join(told.out.split())
    assert "operations through h3 took up to" in said
    assert "only the process on h6 stood still" in said


@pytest.mark.proves("fabric.allreduce", finds="loss in one direction")
@pytest.mark.proves("fabric.allreduce", finds="a link that dies")
def test_loss_in_one_direction_and_a_link_that_dies(judge: Callable[..., Told]) -> None:
    """Named is neither the end that waits for lost packets nor who lost its partner."""
    loss, death = Fault("one-direction loss", ("h5",), way="out"), Fault("dead link", ("h2",))
    told = judge(loss, death)
    assert _headings(told) == {"h5  fabric.allreduce", "h2  fabric.allreduce"}
    assert "the connection to it was lost" in " ".join(told.out.split())


@pytest.mark.proves("fabric.allreduce", finds="a spiking cable")
@pytest.mark.proves("fabric.allreduce", finds="a stalled host")
def test_a_spiking_cable_and_a_stalled_host(judge: Callable[..., Told]) -> None:
    """Both come and go: their partners share every spike of theirs, and are not named."""
    told = judge(Fault("spiking cable", ("h4",)), Fault("stalled host", ("h6",)))
    assert _headings(told) == {"h4  fabric.allreduce", "h6  fabric.allreduce"}
