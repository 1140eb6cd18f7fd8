"""Makes the torch of one lab host say that it has GPUs: loaded by that host's Python only.

`watch_for_torch` is called by a .pth file of the host's own environment. When torch has been
imported, `install` puts simulated GPUs, streams and NCCL in place of what a CPU build lacks.
Rules come from torch's and NCCL's sources, named where they are imitated; nothing here knows
preflight. A host without a scenario keeps its torch as it is.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import TYPE_CHECKING, Any

from . import machine, trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_UNUSED = "torch._meta_registrations"


class _Loader(importlib.abc.Loader):
    """Loads torch with its own loader, then installs the GPUs."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the real loader does."""
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run torch's own code, then ours.

        What only tensors without data need is left out: a quarter of the time of the import.
        """
        sys.modules.setdefault(_UNUSED, types.ModuleType(_UNUSED))
        module.__file__ = self._real.path
        self._real.exec_module(module)
        install(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Only torch itself, and only once."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
            # Who only looks for torch's files, as the probe does, finds those of a build with CUDA.
            spec.origin = str(machine.files() / "torch" / "__init__.py")
        return spec


def watch_for_torch() -> None:
    """Wait for `import torch`; nothing is imported before. Lines are traced from here on."""
    scenario = machine.scenario()
    if scenario is None:
        return
    sys.meta_path.insert(0, _Finder())
    if scenario["trace"]:
        trace.start(scenario["trace"])


def install(torch: Any) -> None:
    """Give this torch the GPUs and the NCCL of the host's scenario."""
    from . import cuda, process_group

    cuda.install(torch)
    process_group.install(torch)
