"""A rank's part in pytest: rank 0 runs the session and takes all with it, the others follow it."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn

import msgspec
import pytest

from preflight import __version__
from preflight.carried import modules
from preflight.errors import PreflightError, UsageError
from preflight.sitehooks import ask_sections
from preflight.torchrun.board import Board
from preflight.torchrun.follower import follow
from preflight.torchrun.gather import gather
from preflight.torchrun.hub import Hub
from preflight.torchrun.notes import Decoder, Hello
from preflight.torchrun.place import read_place
from preflight.torchrun.refusals import refuse
from preflight.transport.torchrun import TorchrunTransport

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from preflight.torchrun.crew import Crew
    from preflight.torchrun.place import Place
    from preflight.transport.bundle import Beside

WRONG, BROKE, INTERRUPTED = 4, 3, 2

SAID_S = 10.0
"""For rank 0 to say what is refused before a rank beside it leaves."""


def role_of(environ: Mapping[str, str]) -> Leading | Following:
    """What this process does; pytest.UsageError if torchrun's environment makes no sense."""
    try:
        place = read_place(environ)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    return Following(place) if place.rank else Leading(place)


class Following:
    """The plugin object of every rank but rank 0."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> NoReturn:
        """Serve rank 0 in place of a session. Nothing of pytest has begun here yet."""
        code = 0
        if not _only_asks(config):
            try:
                refuse(config, self._place)
                code = follow(self._place, _sections(config))
            except UsageError:  # rank 0 comes to the same, and says it
                code = WRONG
                if self._place.rank < self._place.per_node:
                    time.sleep(SAID_S)  # torchrun ends us, and with us rank 0, when one has left
        # Threads that are inside the store would crash an interpreter that shuts down.
        os._exit(code)


class Leading:
    """The plugin object of rank 0: it has the crew for whoever plans the run."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._config: pytest.Config
        self.crew: Crew | None = None
        self.hub: Hub | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Generator[None, object, object]:
        """Gather the ranks before the session, and let them go after it, with its exit code."""
        if _only_asks(config):
            return (yield)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        code = BROKE
        try:
            self._open(config)
            result = yield
            code = int(result) if isinstance(result, int) else BROKE
        except pytest.UsageError:
            code = WRONG
            raise
        except KeyboardInterrupt:
            code = INTERRUPTED
            raise SystemExit(code) from None
        except PreflightError as error:
            _say(str(error))
            raise SystemExit(code) from error
        finally:
            # From here on SIGTERM only means that we leave later than another rank of this node.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if self.hub is not None:
                sys.stdout.flush()
                self.hub.finish(code)
        return result

    def transport(self) -> TorchrunTransport:
        """The way to all nodes of this job."""
        if self.crew is None or self.hub is None:
            raise UsageError(
                "the ranks were not gathered: start pytest with torchrun ... -m pytest"
            )
        return TorchrunTransport(self.crew, self.hub, _sections(self._config))

    def _open(self, config: pytest.Config) -> None:
        try:
            refuse(config, self._place)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
        self._config = config
        nonce = secrets.token_hex(16)
        listening, speaking = Board.open(self._place), Board.open(self._place)
        self.hub = Hub(listening, speaking, nonce)
        self.hub.begin()
        speaking.write("hello", msgspec.json.encode(Hello(nonce, __version__)))
        self.crew = gather(self._place, speaking, Decoder(nonce), nonce, _say)
        self.hub.man(m.rank for m in self.crew.members if m.present and m.rank)
        uneven = next((m for m in self.crew.members if m.present and not m.is_regular), None)
        if uneven is not None:
            raise pytest.UsageError(
                f"{self.crew.words(uneven)} is one of another number of ranks per node: give the "
                "same --nproc-per-node on every node"
            )


def leading(config: pytest.Config) -> Leading | None:
    """The role of rank 0, where torchrun started this session."""
    role = config.pluginmanager.get_plugin("preflight-rank")
    return role if isinstance(role, Leading) else None


def _sections(config: pytest.Config) -> Beside:
    """The site's own modules for the probe: code does not travel through the job's store."""
    try:
        return modules(ask_sections(config))
    except UsageError:  # rank 0 comes to the same, and says it
        return ()


def _only_asks(config: pytest.Config) -> bool:
    """Whether somebody wants help or a version, and no run."""
    return bool(config.getoption("help", None) or config.getoption("version", None))


def _say(line: str) -> None:
    print(f"preflight: {line}", file=sys.stderr, flush=True)  # noqa: T201  no terminal reporter yet
