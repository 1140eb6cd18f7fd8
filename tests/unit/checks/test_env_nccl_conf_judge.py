"""`env.nccl_conf`: files of settings that no launch script names, read as NCCL reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.checks.env.test_nccl_conf import judge
from preflight.facts.node_network import ConfFile, ConfSetting
from preflight.fleet.model import Expected
from preflight.verdict import Outcome, Verdict
from tests.unit.facts.builders import facts, group

if TYPE_CHECKING:
    from preflight.facts.model import Facts

ETC, USER = "/etc/nccl.conf", "/home/a/.nccl.conf"


def conf(path: str = ETC, skipped: int = 0, /, **settings: str) -> ConfFile:
    """One file."""
    judged = tuple(ConfSetting(name, value) for name, value in settings.items())
    kind = "system" if path == ETC else "user"
    return ConfFile(path, kind, judged, skipped)  # type: ignore[arg-type]


def node(*files: ConfFile) -> Facts:
    """A node with these files."""
    return facts(nccl_conf=files)


def verdict_of(*files: ConfFile, expected: Expected | None = None, **environ: str) -> Verdict:
    """The verdict on a node that is alone in its group."""
    here = node(*files)
    return judge(environ, expected or Expected(), here, group(here))


@pytest.mark.proves("env.nccl_conf", passes="no file, and a file of good settings")
def test_no_file_and_good_settings_pass() -> None:
    """The sentence says which files there are, and how much is in them."""
    assert verdict_of().sentence == "no nccl.conf here"
    verdict = verdict_of(conf(NCCL_DEBUG="WARN", NCCL_SOCKET_IFNAME="=ens1f0"))
    assert verdict.outcome is Outcome.OK
    assert verdict.sentence == "/etc/nccl.conf: 2 settings, all right"


@pytest.mark.proves("env.nccl_conf", finds="NCCL_IB_DISABLE=1 in /etc/nccl.conf, NICs expected")
def test_a_fast_way_that_the_file_switches_off() -> None:
    """The job never named it: the file does."""
    verdict = verdict_of(conf(NCCL_IB_DISABLE="1"), expected=Expected(nics=8))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.startswith("/etc/nccl.conf: NCCL_IB_DISABLE=1 sends all over TCP")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("NCCL_IB_TIMEOUT", "1000", "the NIC waits for ever"),
        ("NCCL_DEBUG ", " INFO", "sets a variable called 'NCCL_DEBUG '"),
        ("export NCCL_DEBUG", "INFO", "sets a variable called 'export NCCL_DEBUG'"),
        ("NCCL_DEBUG", "INFO # later", "the comment is part of the value"),
        ("NCCL_DEBUG", "INFO ", "a blank or carriage return is part of it"),
        ("NCCL_NET", '"IB"', "the quotes are part of the value"),
    ],
)
def test_a_line_that_nccl_reads_otherwise_than_meant_fails(
    name: str, value: str, words: str
) -> None:
    """NCCL splits at the first = and trims nothing."""
    verdict = verdict_of(conf(**{name: value}))
    assert verdict.outcome is Outcome.FAIL
    assert words in verdict.sentence


def test_what_has_no_effect_warns() -> None:
    """Names of others, lines without =, and what the environment overrides."""
    assert "nothing reads it" in verdict_of(conf(NCCL_TIMEOUT="1")).sentence
    assert "comes too late" in verdict_of(conf(TORCH_NCCL_NAN_CHECK="1")).sentence
    assert "are not NAME=VALUE" in verdict_of(conf(ETC, 2)).sentence
    verdict = verdict_of(conf(NCCL_DEBUG="INFO"), NCCL_DEBUG="WARN")
    assert verdict.outcome is Outcome.WARN
    assert "NCCL_DEBUG=INFO has no effect: the environment has NCCL_DEBUG=WARN" in verdict.sentence


def test_the_users_file_wins_over_the_systems() -> None:
    """A switch that the user's file lifts is not switched."""
    expected = Expected(nics=8)
    both = (conf(USER, NCCL_IB_DISABLE="0"), conf(NCCL_IB_DISABLE="1"))
    assert verdict_of(*both, expected=expected).outcome is Outcome.OK


def test_a_node_whose_file_differs_from_most() -> None:
    """Ranks that disagree hang: the odd node is named with both values."""
    usual, odd = node(conf(NCCL_ALGO="Ring")), node(conf(NCCL_ALGO="Tree"))
    peers = group(usual, usual, odd)
    verdict = judge(None, Expected(), odd, peers)
    assert verdict.outcome is Outcome.FAIL
    assert "nccl.conf has NCCL_ALGO=Tree, NCCL_ALGO=Ring on 2 of 3 nodes" in verdict.sentence
    assert judge(None, Expected(), usual, peers).outcome is Outcome.OK
    absent = node()
    verdict = judge(None, Expected(), absent, group(usual, usual, absent))
    assert "nccl.conf has no NCCL_ALGO" in verdict.sentence


@pytest.mark.proves("env.nccl_conf", unknown="the home does not answer, or the file is closed")
def test_what_could_not_be_read_is_unknown() -> None:
    """A hung home is unknown; a file that this login may not read says what to grant."""
    silent = facts(nccl_conf=None)
    assert judge({}, Expected(), silent, group(silent)).outcome is Outcome.UNKNOWN
    verdict = verdict_of(ConfFile(ETC, "system", error="Permission denied"))
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.grant
