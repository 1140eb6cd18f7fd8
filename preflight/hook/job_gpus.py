"""A job's prolog judges the job's own GPUs: a sick GPU of somebody else's must not fail it.

Slurm numbers GPUs as the host does, by the minor number of their device file; a GPU that is gone
moves NVML's own numbers up, so these are only gone by where the minor number is not told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from preflight.facts.gpu_log import roots, slot_of, troubles
from preflight.facts.xid_verdict import missing_slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from preflight.facts.kernel_model import KernelLog
    from preflight.facts.model import Facts, Gpu
    from preflight.fleet.model import Promise
    from preflight.hook.model import HookConfig

VARIABLE: Final = "SLURM_JOB_GPUS"
_MOST: Final = 1024
_PART: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Share:
    """The job's GPUs as far as the scheduler tells. `ids` is None for all GPUs of the node."""

    ids: tuple[int, ...] | None = None
    unclear: str = ""
    """Why it cannot be told which GPUs they are; then none is judged."""


@dataclass(frozen=True, slots=True)
class View:
    """The node as if it had the job's GPUs alone."""

    facts: Facts
    promised: Promise
    unclear: str = ""


def share_of(environ: Mapping[str, str], config: HookConfig) -> Share:
    """Read which GPUs a job is given; without a word of it all, or none where GRES is in use."""
    text = environ.get(VARIABLE)
    if text is None:
        return Share(() if config.gpus_by_gres else None)
    ids: list[int] = []
    for part in text.strip().split(",") if text.strip() else ():
        found = _PART.fullmatch(part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        # A range that runs backwards, or has no end, would silently be none or some of the GPUs.
        if not first <= last < _MOST:
            return Share(unclear=f"{VARIABLE} is {text[:80]!a}, which is no list of GPUs")
        ids += range(first, last + 1)
        if len(ids) > _MOST:
            return Share(unclear=f"{VARIABLE} names more than {_MOST} GPUs")
    return Share(tuple(dict.fromkeys(ids)))


def view(facts: Facts, promised: Promise, share: Share) -> View:
    """Leave out what is about GPUs of others. A numbering that fits no GPU here is `unclear`."""
    if share.unclear or share.ids is None or facts.gpus is None:
        return View(facts, promised, share.unclear)
    if any(gpu.mig_enabled for gpu in facts.gpus):
        why = f"a GPU is cut into MIG instances, which {VARIABLE} does not number as the host does"
        return View(facts, promised, why)
    own = tuple(gpu for gpu in facts.gpus if _number(gpu) in share.ids)
    gone = len(share.ids) - len(own)
    if gone > _absent(facts, promised):
        seen = ", ".join(str(_number(gpu)) for gpu in facts.gpus) or "none"
        given = ",".join(map(str, share.ids))
        return View(facts, promised, f"{VARIABLE} is {given[:80]}, the GPUs here are {seen}")
    return View(
        _with_only(facts, own, gone, len(share.ids)), replace(promised, gpus=len(share.ids))
    )


def _number(gpu: Gpu) -> int:
    return gpu.index if gpu.minor is None else gpu.minor


def _absent(facts: Facts, promised: Promise) -> int:
    """How many GPUs this node lacks, as NVML or the promise tells."""
    answering = len(facts.gpus or ())
    return max(facts.driver.counted or 0, promised.gpus or 0, answering) - answering


def _with_only(facts: Facts, own: tuple[Gpu, ...], gone: int, given: int) -> Facts:
    indices = {gpu.index for gpu in own}
    whole = len(own) == len(facts.gpus or ())
    pairs = facts.gpu_pairs
    return replace(
        facts,
        gpus=own,
        gpu_pairs=pairs and tuple(p for p in pairs if p.a in indices and p.b in indices),
        driver=replace(facts.driver, counted=given),
        # The matrix that nvidia-smi prints is of all GPUs: it has nothing to be held to.
        topo_text=facts.topo_text if whole else None,
        kernel_log=facts.kernel_log and _log_of(facts.kernel_log, facts, own, gone),
        problems=facts.problems if gone else _not_of_lost(facts),
    )


def _log_of(log: KernelLog, facts: Facts, own: tuple[Gpu, ...], gone: int) -> KernelLog:
    """Without the Xids of others' GPUs, and what these made the job's own GPUs echo.

    Those of a lost one are the job's if it lacks one.
    """
    mine = {slot_of(gpu.bus_id) for gpu in own} | {f"GPU{_number(gpu)}" for gpu in own}
    mine |= set(missing_slots(facts)) if gone else set()
    theirs = [one for one in troubles(log.lines) if one.slot not in mine]
    lines = tuple(
        line
        for line in log.lines
        if all(one.slot in mine and one in roots([one, *theirs]) for one in troubles((line,)))
    )
    return replace(log, lines=lines)


def _not_of_lost(facts: Facts) -> tuple[str, ...]:
    """The job's GPUs are all here: that another one is lost is not told of them."""
    here = tuple(f"GPU {gpu.index}:" for gpu in facts.gpus or ())
    return tuple(
        line for line in facts.problems if not line.startswith("GPU ") or line.startswith(here)
    )
