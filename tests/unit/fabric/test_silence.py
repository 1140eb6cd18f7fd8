"""Order in time and own words tell who broke a sweep off from who merely waited."""

from __future__ import annotations

import pytest

from preflight.fabric.pair_summary import NO_CULPRIT, LastMessage, find_breakdown

NODES = ("h1", "h2", "h3", "h4")
STORE = "DistStoreError: wait timeout after 20000ms, keys: /torch.rendezvous.preflight-ab12/rank_1"
DISK = "FileNotFoundError: No usable temporary directory found"


def waited(*names: str) -> list[LastMessage]:
    """Nodes whose rendezvous ran out of time."""
    return [LastMessage(name, "error", STORE) for name in names]


def silent(*names: str) -> list[LastMessage]:
    """Nodes that were given up on."""
    return [LastMessage(name, "silent", "it sent nothing more") for name in names]


def gone(name: str) -> LastMessage:
    """A node whose connection broke."""
    return LastMessage(name, "gone", "its connection broke")


@pytest.mark.parametrize(
    ("words", "through", "culprits"),
    [
        ([gone("h3"), *waited("h2", "h4"), *silent("h1")], (), {"h3"}),
        ([*waited("h2", "h4"), gone("h3"), *waited("h1")], (), {"h3"}),
        ([*waited("h1", "h2", "h4"), *silent("h3")], (), {"h3"}),
        ([*waited(*NODES)], (), set()),
        ([*silent(*NODES)], (), set()),
        ([LastMessage("h2", "error", DISK), *silent("h1", "h3", "h4")], (), {"h2"}),
        ([LastMessage("h2", "error", DISK), gone("h1"), *silent("h3")], (), {"h2", "h1"}),
        ([gone("h1"), *waited("h2"), LastMessage("h3", "error", DISK), *silent("h4")], (), {"h1"}),
        ([*waited("h2"), *silent("h3"), gone("h1")], (), {"h1"}),
        ([*waited("h3")], ("h1", "h2", "h4"), {"h3"}),
        ([*silent("h3")], ("h1", "h2"), {"h3"}),
        ([*silent("h2")], (), {"h2"}),
        ([LastMessage("h2", "error", DISK), *silent("h3")], ("h1", "h4"), {"h2", "h3"}),
        ([*map(gone, NODES)], (), set(NODES)),
        ([*waited("h3"), gone("h3"), *waited("h2")], (), {"h3"}),
    ],
)
def test_only_proven_culprits_are_blamed(
    words: list[LastMessage], through: tuple[str, ...], culprits: set[str]
) -> None:
    """Store host lost first, last or not; one's own error first; all lost; all merely waiting."""
    found = find_breakdown(words, nodes=NODES, host="h1", finished=through)
    assert set(found.culprits) == culprits
    assert set(found.victims) == {word.node for word in words} - culprits
    assert "torch.rendezvous" not in str(found)


def test_victims_name_the_nodes_they_waited_for() -> None:
    """By name, or that no culprit is proven."""
    found = find_breakdown([gone("h3"), *waited("h2")], nodes=NODES, host="h1", finished=())
    assert found.victims == {"h2": "waited for h3"}
    found = find_breakdown(waited(*NODES), nodes=NODES, host="h1", finished=())
    assert set(found.victims.values()) == {NO_CULPRIT}
