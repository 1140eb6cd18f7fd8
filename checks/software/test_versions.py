"""What the versions in the job's Python mean for this node: for its driver, its GPUs, its peers."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct

from preflight.verdict import Verdict, not_run, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from preflight.facts.model import Facts
    from preflight.facts.node import Group
    from preflight.facts.software_model import Torch

UNREAD = "what the job's Python holds could not be read"
READ_IT = "look at the file system that holds that Python: does `ls` on it hang?"


class Needed(Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of cuda_drivers.toml."""

    driver: str
    kind: str
    source: str
    date: date


class Drift(NamedTuple):
    """One node that differs from its group in one version; `usual` is None without a majority."""

    node: str
    what: str
    has: str
    usual: str | None
    whom: str
    grave: bool


@cache
def drivers() -> dict[str, Needed]:
    """The oldest driver by CUDA's major version."""
    text = files("preflight.facts").joinpath("cuda_drivers.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Needed])


def version(text: str) -> tuple[int, ...]:
    """The numbers a version begins with, for comparing: "570.86.15" is (570, 86, 15)."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def torch_or_why(facts: Facts) -> Torch | Verdict:
    """The torch that a job would get, or the verdict of a check that is about one."""
    if facts.software is None:
        return unknown(UNREAD, advice=READ_IT)
    python = facts.python.executable or "this Python"
    named = f"no torch in {python}: name the job's with --preflight-python"
    return facts.software.torch or not_run(named)


def without_cuda(torch: Torch) -> str:
    """How a torch says that it cannot use NVIDIA's GPUs; empty for one that can."""
    if torch.cuda is not None:
        return ""
    kind = f"built for ROCm {torch.hip}" if torch.hip else "built without CUDA"
    return f"torch {torch.version} is {kind}"


def runs_on(archs: tuple[str, ...], compute: str) -> bool:
    """Whether kernels compiled for these run on a GPU of that compute capability, "9.0".

    Code runs on its own major version from its minor version on; PTX on everything later.
    Source: CUDA C++ Programming Guide, binary and PTX compatibility.
    """
    here = version(compute)
    for arch in archs:
        kind, _, digits = arch.partition("_")
        number = re.match(r"\d+", digits)
        if number is None or len(here) < 2:  # noqa: PLR2004  major and minor
            continue
        built = divmod(int(number[0]), 10)
        if kind == "compute" and built <= here[:2]:
            return True
        if kind == "sm" and built[0] == here[0] and built[1] <= here[1]:
            return True
    return False


def torch_of(facts: Facts) -> str | None:
    """The torch of a node, for the vote of its group."""
    if facts.software is None:
        return None
    return facts.software.torch.version if facts.software.torch else "none"


def cuda_of(facts: Facts) -> str | None:
    """The CUDA that it is built for: one version is built for several."""
    return facts.software.torch.cuda if facts.software and facts.software.torch else None


def nccl_of(facts: Facts) -> str | None:
    """The NCCL that it would load, where files tell."""
    return facts.software.nccl if facts.software else None


def cudnn_of(facts: Facts) -> str | None:
    """The cuDNN that it would load, where files tell."""
    return facts.software.cudnn if facts.software else None


def python_of(facts: Facts) -> str | None:
    """Major and minor version of the job's Python."""
    return ".".join(facts.python.version.split(".")[:2]) or None


_VOTES: tuple[tuple[str, Callable[[Facts], str | None], bool], ...] = (
    ("torch", torch_of, True),
    ("CUDA", cuda_of, True),
    ("NCCL", nccl_of, True),
    ("cuDNN", cudnn_of, False),
    ("Python", python_of, False),
)
"""What, how it is read, and whether a job of different ones hangs or dies."""


def drifts(group: Group) -> Iterator[Drift]:
    """Every node that differs from its group, by the first version in which it does.

    Another torch brings its own CUDA and NCCL: that is one cause.
    """
    told: set[str] = set()
    for what, read, grave in _VOTES:
        usual = group.majority(read)
        values = {name: read(facts) for name, facts in group.facts.items()}
        if usual is None or len({value for value in values.values() if value is not None}) < 2:  # noqa: PLR2004
            continue
        whom = f"on {usual.votes} of {usual.of} nodes"
        wanted = usual.value if usual.decides else None
        for name, has in values.items():
            if has is None or has == wanted or name in told:
                continue
            yield Drift(name, what, has, wanted, whom, grave)
            told.add(name)
