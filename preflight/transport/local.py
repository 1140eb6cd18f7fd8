"""The machine we run on as a node: how a prolog and a bare `pytest --preflight` are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.transport.pipes import PipeRemote, spawn
from preflight.transport.protocol import OUTPUT_LIMIT, ReachError
from preflight.transport.streams import deadlined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.fleet.model import Host


class LocalTransport:
    """Runs commands as processes of ours: no shell, no network, a session of their own."""

    name = "local"

    def connect(self, host: Host, timeout_s: float) -> LocalConnection:
        """Nothing to connect to: always succeeds."""
        del host, timeout_s
        return LocalConnection()

    def close(self) -> None:
        """Nothing to leave."""


class LocalConnection:
    """Starts processes here."""

    def start(
        self, argv: Sequence[str], *, timeout_s: float, limit: int = OUTPUT_LIMIT
    ) -> PipeRemote:
        """Start it in a process group of its own, which ends as a whole."""
        try:
            process = spawn(deadlined(argv, timeout_s))
        except OSError as error:
            raise ReachError(
                "python", f"cannot start a process here: {error}", "install coreutils' timeout"
            ) from error
        return PipeRemote(process, timeout_s, limit)

    def close(self) -> None:
        """Nothing to leave."""
