"""pytest under torchrun: rank 0 runs the session, the other ranks serve it and exit with it."""

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
from preflight.core.command_line import INTERRUPTED, UNCLEAR, USAGE
from preflight.core.files import shipped_table
from preflight.core.text import printable
from preflight.errors import PreflightError, UsageError
from preflight.run.site_sections import modules
from preflight.session.flags import usage_errors
from preflight.session.site import ask_sections
from preflight.transport.job_store import Hello, JobStore, Place, read_place
from preflight.transport.job_store_hub import RankHub
from preflight.transport.rank_follower import follow
from preflight.transport.torchrun_ranks import JobRanks, TorchrunTransport, gather

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from preflight.transport.bundle import SiteCode


_WHY_NOT = "under torchrun every rank is a pytest, and rank 0 alone judges"

_HARMLESS = {"count": (1,), "maxfail": (0,)}

_NO_STORE = (
    "this torchrun leaves the rendezvous store to the job (TORCHELASTIC_USE_AGENT_STORE=False): "
    "unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE and use --rdzv-backend=c10d or static for this run"
)


def refuse_conflicting_options(config: pytest.Config, place: Place) -> None:
    """Raise UsageError for options that do not go with torchrun, on every rank alike."""
    conflicts = shipped_table(__file__, "torchrun_conflicts.toml")
    for name, (option, advice) in conflicts["pytest"].items():
        value = config.getoption(name, None)
        if value and value not in _HARMLESS.get(name, ()):
            raise UsageError(f"{option} does not go with torchrun: {_WHY_NOT}; {advice}")
    if config.pluginmanager.hasplugin("randomly"):
        raise UsageError(
            f"pytest-randomly does not go with torchrun: {_WHY_NOT}; switch it off: -p no:randomly"
        )
    for name, advice in conflicts["preflight"].items():
        if config.getoption(name, None) is not None:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} does not go with torchrun: {advice}")
    if not place.agent_store:
        raise UsageError(_NO_STORE)


REFUSAL_S = 10.0
"""Time for rank 0 to print a usage error before another rank on its node exits."""


def rank_plugin(environ: Mapping[str, str]) -> Rank0Plugin | OtherRankPlugin:
    """The plugin for this rank; UsageError if torchrun's environment makes no sense."""
    place = read_place(environ)
    return OtherRankPlugin(place) if place.rank else Rank0Plugin(place)


class OtherRankPlugin:
    """The plugin object of every rank but rank 0."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> NoReturn:
        """Serve rank 0 instead of running a session, before pytest has started anything."""
        code = 0
        if not _is_only_help(config):
            try:
                refuse_conflicting_options(config, self._place)
                code = follow(self._place, _site_modules(config))
            except UsageError:  # rank 0 finds the same error, and prints it
                code = USAGE
                if self._place.rank < self._place.local_world_size:
                    time.sleep(REFUSAL_S)  # when one rank exits, torchrun ends all, rank 0 too
        # Threads that wait in the store would crash an interpreter that shuts down.
        os._exit(code)


class Rank0Plugin:
    """The plugin object of rank 0: it gathers the ranks of the job before the run is planned."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._config: pytest.Config
        self.ranks: JobRanks | None = None
        self.hub: RankHub | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Generator[None, object, object]:
        """Gather the ranks before the session, and let them go after it, with its exit code."""
        if _is_only_help(config):
            return (yield)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        code = UNCLEAR
        try:
            with usage_errors():
                self._gather_ranks(config)
            result = yield
            code = int(result) if isinstance(result, int) else UNCLEAR
        except pytest.UsageError:  # noqa: TID251  ours, or pytest's
            code = USAGE
            raise
        except KeyboardInterrupt:
            code = INTERRUPTED
            raise SystemExit(code) from None
        except PreflightError as error:
            _print_line(str(error))
            raise SystemExit(code) from error
        finally:
            # From here on SIGTERM only means that another rank of this node has exited first.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if self.hub is not None:
                sys.stdout.flush()
                self.hub.finish(code)
        return result

    def transport(self) -> TorchrunTransport:
        """The transport to all nodes of this job."""
        if self.ranks is None or self.hub is None:
            raise UsageError(
                "the ranks were not gathered: start pytest with torchrun ... -m pytest"
            )
        return TorchrunTransport(self.ranks, self.hub, _site_modules(self._config))

    def _gather_ranks(self, config: pytest.Config) -> None:
        refuse_conflicting_options(config, self._place)
        self._config = config
        nonce = secrets.token_hex(16)
        incoming, outgoing = JobStore.open(self._place), JobStore.open(self._place)
        self.hub = RankHub(incoming, outgoing, nonce)
        self.hub.begin()
        outgoing.write("hello", msgspec.json.encode(Hello(nonce, __version__)))
        self.ranks = gather(self._place, outgoing, nonce, _print_line)
        self.hub.watch(m.rank for m in self.ranks.members if m.present and m.rank)
        uneven = next((m for m in self.ranks.members if m.present and not m.is_regular), None)
        if uneven is not None:
            raise UsageError(
                f"{self.ranks.describe(uneven)} has a different number of ranks on its node: give "
                "the same --nproc-per-node on every node"
            )


def rank_0_plugin(config: pytest.Config) -> Rank0Plugin | None:
    """The plugin of rank 0, if torchrun started this session."""
    role = config.pluginmanager.get_plugin("preflight-rank")
    return role if isinstance(role, Rank0Plugin) else None


def _site_modules(config: pytest.Config) -> SiteCode:
    """Each rank loads the site's modules itself: no code is sent through the job's store."""
    try:
        return modules(ask_sections(config))
    except UsageError:  # rank 0 finds the same error, and prints it
        return ()


def _is_only_help(config: pytest.Config) -> bool:
    """Whether pytest only shows its help or its version."""
    return bool(config.getoption("help", None) or config.getoption("version", None))


def _print_line(line: str) -> None:
    print(f"preflight: {printable(line)}", file=sys.stderr, flush=True)  # noqa: T201  no terminal reporter yet
