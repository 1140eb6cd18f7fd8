"""Facts of the node we run on, by the very probe that a run sends out, in its own process."""

from __future__ import annotations

import secrets
import sys
import time
from typing import TYPE_CHECKING, Final

from preflight.errors import PreflightError, WireError
from preflight.facts.decode import decode_facts
from preflight.fleet.model import Host
from preflight.stages.probe import DRIVER_S
from preflight.transport.bundle import start_payload
from preflight.transport.local import LocalTransport
from preflight.transport.protocol import ReachError

if TYPE_CHECKING:
    from preflight.facts.model import Facts
    from preflight.hook.model import HookConfig

LAST_S: Final = 1.8
"""What the probe keeps of its time for the processes, which it asks for after the driver, and for
its answer."""

LEAST_S: Final = 0.5


class SilentError(PreflightError):
    """The probe was not done when its time was up: nothing is known of the node, good or bad."""


def ask(name: str, config: HookConfig, deadline_s: float, *, spare: bool) -> Facts:
    """Read this node's facts; `spare` leaves out nvidia-smi, which takes longer than all the rest.

    SilentError when the time is up; WireError for an answer that is none, which is a fault of ours.
    """
    host = Host(name=name, address="127.0.0.1", transport="local", python=(sys.executable,))
    request = {
        "nonce": (nonce := secrets.token_hex(16)),
        "name": name,
        "deadline_s": deadline_s,
        "driver_deadline_s": driver_s(deadline_s),
        "sysfs": str(config.sysfs),
        "kmsg": str(config.kernel_log),
        "spare": spare,
    }
    began = time.monotonic()
    try:
        connection = LocalTransport().connect(host, deadline_s)
        talk = start_payload(connection, host, "probe", request, deadline_s)
        try:
            talk.finish()
            return decode_facts(talk.read(deadline_s), nonce)
        finally:
            talk.close()
    except (ReachError, TimeoutError) as error:
        if time.monotonic() - began >= deadline_s:
            raise SilentError(f"the probe gave no answer within {deadline_s:.1f} s") from error
        raise WireError(f"the probe gave no answer: {error}") from error


def driver_s(deadline_s: float) -> float:
    """How long the driver may take, of so much for the whole probe."""
    return max(LEAST_S, min(DRIVER_S, deadline_s - LAST_S))
