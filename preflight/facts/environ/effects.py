"""What a setting will do, in seconds: nobody sees from "22" that a dead link costs two minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from preflight.facts.environ.numbers import number

if TYPE_CHECKING:
    from collections.abc import Mapping

ACK_UNIT_S: Final = 4.096e-6
"""Local Ack Timeout: this times 2^value. InfiniBand specification, volume 1, 12.7.34."""

_TIMEOUT, _RETRIES = 20, 7
_TRIES, _PAUSE_MS, _HEARTBEAT_S = 34, 100, 480
"""Defaults of NCCL 2.23 and later, and of torch 2.13; as in the TOML files."""

_FIVE_BITS: Final = 31
_MOST_TRIES: Final = 1 << 31


def effect(kind: str, environ: Mapping[str, str]) -> str:
    """Say what the settings behind one kind of effect come to; "" where there is nothing to say."""
    if kind == "ib_timeout":
        return _dead_link(environ)
    if kind == "socket_retry":
        return _absent_peer(environ)
    return _watchdog(environ) if kind == "heartbeat" else ""


def duration(seconds: float) -> str:
    """67 ms, 4.3 s, 30 s, 2.3 min, 16 min, 1.5 h."""
    for least, unit, size in ((7200, "h", 3600), (120, "min", 60), (1, "s", 1)):
        if seconds >= least:
            return f"{_two_digits(seconds / size)} {unit}"
    return f"{_two_digits(seconds * 1000)} ms"


def _two_digits(amount: float) -> str:
    return f"{float(f'{amount:.2g}'):g}"


def _dead_link(environ: Mapping[str, str]) -> str:
    timeout = _or(number(environ.get("NCCL_IB_TIMEOUT")), _TIMEOUT)
    retries = _or(number(environ.get("NCCL_IB_RETRY_CNT")), _RETRIES)
    if not 1 <= timeout <= _FIVE_BITS:
        return "a dead link will never be noticed"
    after_s = ACK_UNIT_S * 2**timeout * max(1, min(retries, _RETRIES))
    return f"a dead link will be noticed after {duration(after_s)}"


def _absent_peer(environ: Mapping[str, str]) -> str:
    tries = _or(number(environ.get("NCCL_SOCKET_RETRY_CNT")), _TRIES)
    pause_ms = _or(number(environ.get("NCCL_SOCKET_RETRY_SLEEP_MSEC")), _PAUSE_MS)
    if not 0 < tries < _MOST_TRIES or pause_ms <= 0:
        return ""
    # The pauses grow by one each time: NCCL user guide, NCCL_SOCKET_RETRY_SLEEP_MSEC.
    after_s = (tries + 1) * tries / 2 * pause_ms / 1000
    return f"a peer that refuses connections will be given up after {duration(after_s)}"


def _watchdog(environ: Mapping[str, str]) -> str:
    seconds = _or(number(environ.get("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"), "stoi"), _HEARTBEAT_S)
    return f"a stuck watchdog will end its rank after {duration(seconds)}" if seconds > 0 else ""


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
