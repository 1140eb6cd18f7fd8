"""The three forms in which samples are stored, told apart by what they hold (docs/samples.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from preflight.errors import UsageError
from preflight.fabric.observed import Observed
from preflight.fabric.samples import Sweep

VERSION = 1
"""Of both forms; raised by a change that an older reader would misread."""

Form = Literal["run", "long", "short"]
"""`run`: the measured.json of a run. `long`: a sweep, every iteration. `short`: quantiles."""

_NOTHING = Raw(b"")


class Stored(Struct, frozen=True, kw_only=True):
    """Samples that were read and found sound."""

    path: Path
    form: Form
    observed: Observed
    """What the decoder is given: made from the sweep where there is one."""
    sweep: Sweep | None = None
    run: str = ""
    """Of a run's folder: its random id."""


class Document(Struct, frozen=True, kw_only=True):
    """What tells the forms apart; their parts are not looked at yet."""

    version: int = VERSION
    nonce: str = ""
    sweep: Raw = _NOTHING
    ladder: Raw = _NOTHING
    pairs: Raw = _NOTHING
    tried: Raw = _NOTHING
    digests: Raw = _NOTHING

    @property
    def form(self) -> Form:
        """Which form it is; UsageError if it is none or of a later version."""
        if self.version != VERSION:
            raise UsageError(
                f"its samples are of version {self.version}, this preflight reads {VERSION}; "
                "use the preflight that wrote them"
            )
        if bytes(self.tried) and bytes(self.digests):
            return "short"
        if bytes(self.ladder) and bytes(self.pairs):
            return "long"
        if self.nonce:
            return "run"
        raise UsageError(
            "it holds neither samples nor a run: a long form has ladder, rounds and pairs, a short "
            "one nodes, tried and digests (docs/samples.md); give a file of either form"
        )


def encode_sweep(sweep: Sweep) -> bytes:
    """Write the long form: every iteration of both ends."""
    return _encode(sweep)


def encode_observed(observed: Observed) -> bytes:
    """Write the short form: what statistics and blame need, about 1/20 of the long one."""
    return _encode(observed)


def _encode(samples: Sweep | Observed) -> bytes:
    fields: dict[str, Any] = {name: getattr(samples, name) for name in samples.__struct_fields__}
    return msgspec.json.encode({"version": VERSION, **fields})
