"""`preflight diagnose` of real torchrun jobs that hang: the right rank and line, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab.hangs.asked import diagnose
from tests.lab.hangs.kept import KeptJob
from tests.lab.hangs.situations import situations
from tests.lazy_torch import needs_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.cluster import Lab
    from tests.lab.hangs.situations import Situation

pytestmark = [pytest.mark.lab, needs_torch]

_HERE = [one for one in situations(5, (1, 4, 6)) if not one.seldom]
"""Those that one launch serves; `make bench-full` has the others, ten times each."""


@pytest.fixture(scope="module")
def kept(cluster: Lab) -> Iterator[KeptJob]:
    """Eight ranks on four hosts, which go on from one situation to the next."""
    with KeptJob(cluster) as kept:
        yield kept
    cluster.heal()


@pytest.mark.parametrize("situation", _HERE, ids=lambda one: one.name)
def test_who_keeps_a_job_waiting_is_named(
    kept: KeptJob, cluster: Lab, situation: Situation
) -> None:
    """The rank (or node, or path), what it does, and its line; the job goes on as if not asked."""
    looked = "3" if situation.moves else "1"
    with kept.hanging(situation):
        done = diagnose(cluster.inventory("hang.toml"), "--json", f"--look-s={looked}")
    assert not situation.expected.off(done.answer), done.out
