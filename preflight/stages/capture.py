"""What each node shows for a capture: its facts as they came, and what its tools print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from preflight.errors import PreflightError, WireError
from preflight.stages.probe import CONNECT_S, DRIVER_S, PROBE_S
from preflight.transport.bundle import start_payload
from preflight.transport.fanout import SETUP_AT_MOST, fan_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fleet.model import Host
    from preflight.transport.protocol import Connection
    from preflight.transport.ways import Ways

OUTPUTS_S = 30.0
"""For all tools of a node together, which run at once; nvidia-smi may take seconds by itself."""

LIMIT = 32 << 20
"""Bytes of a node's answer: eight outputs of 512 KiB at most, in escaped JSON."""

_Words = Annotated[str, Meta(max_length=512)]


class Output(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one tool printed on a node; `error` says why there is less than there should be."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,60}\.txt\Z")]
    command: _Words
    status: Annotated[int, Meta(ge=-255, le=255)] | None
    """Exit status; negative for a signal. None: it is not installed, or was ended by us."""
    seconds: Annotated[float, Meta(ge=0, le=86400)]
    cut: bool
    """It printed more than is kept."""
    error: _Words
    text: Annotated[str, Meta(max_length=512 << 10)]


class _Outputs(Struct, frozen=True, forbid_unknown_fields=True):
    outputs: Annotated[tuple[Output, ...], Meta(max_length=16)]


class Shown(Struct, frozen=True, kw_only=True):
    """One node's part of a capture."""

    facts: bytes | None = None
    """The probe's document, as the node sent it."""
    outputs: tuple[Output, ...] = ()
    troubles: dict[str, str] = {}
    """"facts" or "outputs" → why there are none."""


def capture_fleet(
    hosts: Sequence[Host], ways: Ways, nonce: str, *, deadline_s: float
) -> dict[str, Shown]:
    """Ask every node, all at once; each has an entry in the result, whatever happens to it."""
    answers = fan_out(
        hosts,
        lambda host: _shown(host, ways, nonce),
        deadline_s=deadline_s,
        at_most=SETUP_AT_MOST,
    )
    return {
        name: one if isinstance(one, Shown) else Shown(troubles=dict.fromkeys(_ASKED, str(one)))
        for name, one in answers.items()
    }


_ASKED = {"facts": ("probe", PROBE_S), "outputs": ("outputs", OUTPUTS_S)}


def _shown(host: Host, ways: Ways, nonce: str) -> Shown:
    connection = ways.connect(host, CONNECT_S)
    said: dict[str, bytes] = {}
    troubles: dict[str, str] = {}
    try:
        for what, (entry, timeout_s) in _ASKED.items():
            try:
                said[what] = _ask(connection, host, nonce, entry, timeout_s)
            except (PreflightError, TimeoutError) as error:
                troubles[what] = str(error) or "no answer in time"
    finally:
        connection.close()
    outputs: tuple[Output, ...] = ()
    try:
        outputs = decode_outputs(said["outputs"]) if "outputs" in said else ()
    except WireError as error:
        troubles["outputs"] = str(error)
    return Shown(facts=said.get("facts"), outputs=outputs, troubles=troubles)


def _ask(connection: Connection, host: Host, nonce: str, entry: str, timeout_s: float) -> bytes:
    request = {
        "nonce": nonce,
        "name": host.name,
        "deadline_s": timeout_s,
        "driver_deadline_s": DRIVER_S,
    }
    talk = start_payload(connection, host, entry, request, timeout_s, limit=LIMIT)
    try:
        talk.finish()
        return talk.read(timeout_s + 2)
    finally:
        talk.close()


def decode_outputs(document: bytes) -> tuple[Output, ...]:
    """Decode what the entry `outputs` says; WireError if it is not that."""
    try:
        outputs = msgspec.json.decode(document, type=_Outputs).outputs
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).encode("ascii", "replace").decode()[:200]
        raise WireError(f"its tools' outputs are no preflight document: {reason}") from error
    if len({one.name for one in outputs}) != len(outputs):
        raise WireError("its tools' outputs name one file twice")
    return outputs
