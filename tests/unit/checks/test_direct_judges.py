"""`ib.gpudirect`, `host.pci_acs`: whether NICs reach GPUs, and by the shortest way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.checks.host.test_setup import judge_pci_acs as judge_acs
from preflight.checks.rdma.test_slots import judge_gpudirect as judge_direct
from preflight.facts.node_network import AcsPort, GpuDirect
from preflight.verdict import Outcome, Verdict
from tests.unit.facts.builders import facts, group, rdma_port

if TYPE_CHECKING:
    from preflight.facts.model import Facts

PORT = AcsPort("0000:17:00.0", redirects=True)
NO_DMABUF = "5.4.0-150-generic"


def node(host: str = "h1", *, kernel: str = "6.1.0", **changes: object) -> Facts:
    """A node with these PCIe settings."""
    one = GpuDirect(peermem=False, open_modules=False, iommu="none", acs=(), machine="x86_64")
    return facts(host, kernel=kernel, gpudirect=replace(one, **changes))


def direct(one: Facts, *others: Facts) -> Verdict:
    """What ib.gpudirect says of a node among others."""
    return judge_direct(one, group(one, *others))


def acs(one: Facts, *others: Facts) -> Verdict:
    """What host.pci_acs says of a node among others."""
    return judge_acs(one, group(one, *others))


@pytest.mark.proves("ib.gpudirect", passes="nvidia_peermem, or dma-buf with the open modules")
@pytest.mark.parametrize(
    ("one", "words"),
    [
        (node(peermem=True), "nvidia_peermem"),
        (node(open_modules=True), "dma-buf"),
        (node(peermem=None, open_modules=True), "dma-buf"),
        (node(peermem=True, kernel=NO_DMABUF), "nvidia_peermem"),
    ],
)
def test_a_way_to_the_gpus(one: Facts, words: str) -> None:
    """Either way will do."""
    assert direct(one).sentence == f"NICs reach GPU memory by {words}"


@pytest.mark.proves("ib.gpudirect", finds="a node without peermem and dma-buf, unlike the others")
def test_no_way_to_the_gpus() -> None:
    """Alone a warning, beside nodes that have one a fault; the open modules need a new kernel."""
    assert direct(node()).outcome is Outcome.WARN
    assert direct(node(open_modules=True, kernel=NO_DMABUF)).outcome is Outcome.WARN
    verdict = direct(node(), *(node(f"h{at}", peermem=True) for at in (2, 3, 4)))
    assert verdict.outcome is Outcome.FAIL
    assert "nvidia_peermem on 3 of 4 nodes of group train" in verdict.sentence


@pytest.mark.proves("ib.gpudirect", unknown="neither modules nor the driver's kind can be read")
def test_a_way_that_cannot_be_seen() -> None:
    """Hidden modules are no proof of anything; without rails there is nothing to ask."""
    assert direct(node(peermem=None, open_modules=None)).outcome is Outcome.UNKNOWN
    assert direct(node(open_modules=None)).outcome is Outcome.UNKNOWN
    assert direct(facts(gpudirect=None)).outcome is Outcome.UNKNOWN
    assert direct(facts(nics=())).outcome is Outcome.NOT_RUN
    efa = replace((facts().nics or ())[0], ports=(rdma_port(link_layer="Unspecified"),))
    assert direct(facts(nics=(efa,), gpudirect=None)).outcome is Outcome.NOT_RUN


@pytest.mark.proves(
    "host.pci_acs", passes="ports without redirection, IOMMU off or in pass-through"
)
@pytest.mark.parametrize(
    "one",
    [
        node(acs=(replace(PORT, redirects=False),)),
        node(acs=(replace(PORT, translated=True),), iommu="identity"),
        node(iommu="DMA-FQ", machine="aarch64"),
    ],
)
def test_a_short_way(one: Facts) -> None:
    """Direct Translated goes straight; on Grace the SMMU belongs there."""
    assert acs(one).outcome is Outcome.OK


@pytest.mark.proves("host.pci_acs", finds="ACS redirection, IOMMU translation, strict ordering")
@pytest.mark.parametrize(
    ("one", "words"),
    [
        (node(acs=(PORT,)), "ACS redirects the traffic between GPUs and NICs at 0000:17:00.0"),
        (node(iommu="DMA-FQ"), "the IOMMU translates for GPUs and NICs (DMA-FQ)"),
    ],
)
def test_a_long_way(one: Facts, words: str) -> None:
    """Alone a warning; a fault where most nodes do without."""
    verdict = acs(one)
    assert (verdict.outcome, words in verdict.sentence) == ("warn", True), verdict.sentence
    verdict = acs(one, *(node(f"h{at}") for at in (2, 3, 4)))
    assert verdict.outcome is Outcome.FAIL
    assert "on 3 of 4 nodes" in verdict.sentence


def test_strict_ordering() -> None:
    """Only what the others have on is missed."""
    strict = tuple(replace(one, relaxed_ordering=False) for one in facts().nics or ())
    one = replace(node(), nics=strict)
    assert acs(one).outcome is Outcome.OK
    verdict = acs(one, *(node(f"h{at}") for at in (2, 3, 4)))
    assert verdict.outcome is Outcome.WARN
    assert "off for mlx5_0, mlx5_1, mlx5_2 and 5 more, on for all on 3 of 4" in verdict.sentence


@pytest.mark.proves("host.pci_acs", unknown="only root may read PCIe configuration space")
def test_settings_for_root_alone() -> None:
    """It says what to grant, and does not fail; what shows without root is judged."""
    verdict = acs(node(acs=None))
    assert verdict.outcome is Outcome.UNKNOWN
    assert "root" in verdict.grant
    assert acs(node(acs=None, iommu="DMA")).outcome is Outcome.WARN
    assert acs(facts(gpudirect=None)).outcome is Outcome.UNKNOWN
    assert acs(facts(gpus=())).outcome is Outcome.NOT_RUN
