"""A hit's fields with their numbers in words: an operator does not look up status 12 by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.facts.xids import known
from preflight.triage.explain import ibcodes
from preflight.triage.explain.blamed import tasks_of

if TYPE_CHECKING:
    from preflight.triage.explain.model import Hit


def decoded(hit: Hit) -> dict[str, str]:
    """Add who spoke, and what the numbers of InfiniBand, errno and Xid mean."""
    told = dict(hit.fields)
    if hit.speaker.words:
        told.setdefault("speaker", hit.speaker.words)
    if rank := told.get("rank"):
        told["rank_words"] = f"rank{'s' * (',' in rank)} {rank}"
    if tasks := tasks_of(told.get("tasks", "")):
        told["task_words"] = f"task{'s' * (len(tasks) > 1)} {', '.join(tasks)}"
    if status := status_of(told):
        vendor = ibcodes.VENDOR.get(int(told.get("vendor", "0")), "")
        words = ibcodes.STATUS.get(status, f"status {status}")
        told["status_words"] = f"{words}{f'; {vendor}' if vendor else ''}"
    errno = errno_of(told)
    if errno and "errno_words" not in told and hit.symptom.id == "ib_queue_pair":
        told["errno_words"] = ibcodes.ERRNO.get(errno, f"errno {errno}")
    if "xid" in told:
        told["xid_words"] = known(int(told["xid"])).meaning
    return told


def status_of(told: dict[str, str]) -> int:
    """The status of a completion; 0 where none is told."""
    said = told.get("status", "")
    return int(said) if said.isdecimal() else ibcodes.NAMES.get(said, 0)


def errno_of(told: dict[str, str]) -> int:
    """The errno, by number or by Linux' words for it; 0 where none is told."""
    if told.get("errno", "").isdecimal():
        return int(told["errno"])
    said = told.get("said", "")
    return next((number for words, number in ibcodes.ERRNO_OF.items() if words in said), 0)
