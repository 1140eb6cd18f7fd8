"""A fleet of local processes on this machine, judged by checks that say what a test wants.

Nothing is judged that other programs on this machine could change.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.unit.core.site_checks import write_check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.stories.conftest import Told

UNFIT_N2 = "conclude(fail('bent', advice='drain') if node.name == 'n2' else ok('straight'))"


@dataclass(frozen=True)
class Here:
    """Three nodes, each with a Python command of its own, and a folder of site checks."""

    folder: Path
    """Where pytest runs; its pytest.ini names the folder `site`."""
    preflight: Callable[..., Told]

    @property
    def inventory(self) -> Path:
        """The three nodes n1, n2, n3."""
        return self.folder / "fleet.toml"

    def check(
        self,
        check_id: str,
        body: str,
        *,
        requires: tuple[str, ...] = (),
        subject: str = "node",
    ) -> Path:
        """Add a check of the site; `body` may use its subject and must call `conclude`."""
        folder = self.folder / "site"
        return write_check(folder, check_id, body, requires=requires, subject=subject)

    def judge(self, *arguments: str, env: Mapping[str, str] | None = None) -> Told:
        """Judge the three nodes by the site's checks alone."""
        ids = ",".join(
            path.stem.removeprefix("test_").replace("_", ".", 1)
            for path in sorted((self.folder / "site").glob("test_*.py"))
        )
        return self.judge_all(f"--preflight-checks={ids}", *arguments, env=env)

    def judge_all(self, *arguments: str, env: Mapping[str, str] | None = None) -> Told:
        """Judge them by every check there is."""
        return self.preflight(f"--preflight-inventory={self.inventory}", *arguments, env=env)


@pytest.fixture
def here(tmp_path: Path, preflight: Callable[..., Told]) -> Here:
    """A fleet of three nodes that are this machine."""
    folder = tmp_path / "empty"
    (folder / "site").mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\npreflight_checks = site\n")
    nodes = "".join(
        f'[node.n{i}]\naddress = "127.0.0.1"\npython = "env PF_NODE=n{i} {sys.executable}"\n'
        for i in (1, 2, 3)
    )
    content = f'[defaults]\ntransport = "local"\n[group.train]\nnodes = "n[1-3]"\n{nodes}'
    (folder / "fleet.toml").write_text(content)
    return Here(folder, preflight)
