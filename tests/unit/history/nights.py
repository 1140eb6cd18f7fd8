"""Invented nights, and a folder for their history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.core.files import open_folder
from preflight.history import reading
from preflight.history.place import Place, create, parse_place
from preflight.history.run_record import (
    Machine,
    Night,
    NightFinding,
    Numbers,
    Slot,
    no_coverage_update,
)

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.history.queries import History
    from preflight.history.run_record import Changes, Past, PastRun, State

NIGHT_S = 86400.0
FIRST_S = 1_700_000_000.0
UNDER = "cuda, torch 2.4.1, driver 550.54"


def made(folder: Path) -> Place:
    """An empty history file in a new folder."""
    place = parse_place(str(folder), folder)
    with open_folder(folder, make=True) as handle:
        create(place, handle)
    return place


def machine(name: str, state: State = "ready", **changes: object) -> Machine:
    """A node that is ready and reports neither serial number nor GPUs."""
    return Machine(**{"name": name, "state": state, **changes})  # type: ignore[arg-type]


def slots(*uuids: str) -> tuple[Slot, ...]:
    """GPUs in their slots."""
    return tuple(Slot(slot=slot, uuid=uuid, model="H100") for slot, uuid in enumerate(uuids))


def gemm(node: str, *values: float | None, under: str = UNDER) -> Numbers:
    """What its GPUs reached, TFLOPS."""
    units = tuple(f"GPU {slot}" for slot in range(len(values)))
    return Numbers(node=node, measure="gemm_tflops", under=under, units=units, values=values)


def found(check: str, about: str, outcome: str = "fail", **changes: object) -> NightFinding:
    """Something that is not fine."""
    fields = {"sentence": f"{about} is bent", "nodes": (about,), **changes}
    return NightFinding(check=check, about=about, outcome=outcome, **fields)  # type: ignore[arg-type]


def night(number: int, *machines: Machine, **changes: object) -> Night:
    """One night of these machines, by its number."""
    fields = {
        "run": f"{number:032x}",
        "started_s": FIRST_S + number * NIGHT_S,
        "seconds": 60.0,
        "tier": "deep",
        "machines": machines,
        "folded": ",".join(sorted(one.name for one in machines)),
        **changes,
    }
    return Night(**fields)  # type: ignore[arg-type]


def kept(place: Place, *nights: Night) -> Past:
    """Write nights one by one, as runs do."""
    from preflight.history.writing import writing

    for one in nights:
        with writing(place) as writer:
            past = writer.add(one, no_coverage_update)
    return past


def runs_of(history: History) -> tuple[PastRun, ...]:
    """Every run, newest first."""
    return history.changes(history.last_run(), since=history.first_run()).runs[::-1]


def changed(place: Place) -> Changes:
    """What the last run changed."""
    with reading(place) as history:
        return history.changes(history.last_run())
