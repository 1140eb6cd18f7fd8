"""Makes the payload importable as it is on a node, and hands out emulated drivers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

REPOSITORY = Path(__file__).parents[3]
_PAYLOAD = str(REPOSITORY / "preflight" / "payload")
if _PAYLOAD not in sys.path:
    sys.path.append(_PAYLOAD)

if TYPE_CHECKING:
    from tests.lab.nvml.scenario import Scenario

Machine = Callable[["Scenario"], dict[str, str]]
"""Makes a machine of a scenario; returns the environment in which the probe finds it."""


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the compiled NVML emulator."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc to build the NVML emulator")
    from tests.lab.nvml.build import build

    return build(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture
def machine(nvml_library: Path, tmp_path: Path) -> Machine:
    """Return a maker of emulated machines; its sysfs tree is `tmp_path`/sys."""
    from tests.lab import sysfs

    def make(scenario: Scenario) -> dict[str, str]:
        file = tmp_path / "scenario"
        file.write_text(scenario.text())
        sysfs.write(tmp_path / "sys", scenario)
        return {"LD_LIBRARY_PATH": str(nvml_library), "PREFLIGHT_NVML_SCENARIO": str(file)}

    return make


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    """Ends what a test started, in reverse order, also when it failed."""
    with ExitStack() as stack:
        yield stack
