"""hook.toml: only root's word counts, and one line says whatever is wrong in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from preflight.errors import UsageError
from preflight.hook.hook_values import (
    BreakerConfig,
    HookConfig,
    load_config,
    parse_config,
    read_trusted,
    refuse_longer,
)
from tests.cases import draws

if TYPE_CHECKING:
    from preflight.hook.hook_values import Occasion

HERE = Path("hook.toml")
WHOLE = b"""
inventory = "/etc/preflight/fleet.toml"
enforce = true
budget_s = 6
state_dir = "/var/lib/preflight"
log = "syslog"
skip = ["host.load"]
gpus_by_gres = true
[breaker]
directory = "/shared/preflight"
most_nodes = 5
most_share = 0.02
window_s = 600
"""

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="what root trusts needs root")


def test_every_key_is_read() -> None:
    """Paths, switches, seconds and the breaker come out as they were written."""
    read = parse_config(WHOLE, HERE)
    assert read.inventory == Path("/etc/preflight/fleet.toml")
    assert (read.enforce, read.budget_s) == (True, 6)
    assert (read.skip, read.gpus_by_gres) == (("host.load",), True)
    assert read.breaker == BreakerConfig(
        directory=Path("/shared/preflight"), most_nodes=5, most_share=0.02, window_s=600
    )


def test_nothing_said_only_observes() -> None:
    """An empty file is whole: it judges, drains no node, and starts jobs when preflight breaks."""
    read = parse_config(b"", HERE)
    assert read == HookConfig()
    assert (read.enforce, read.breaker) == (False, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("enfroce = true", "enfroce"),
        ("[breaker]\nmost = 3", "most"),
        ("budget_s = 0", "budget_s"),
        ("budget_s = 'long'", "budget_s"),
        ("enforce = 'yes'", "enforce"),
        ("state_dir = 'var'", "begins with /"),
        ("state_dir = '/a\\u001b'".replace("'", '"'), "begins with /"),
        ("state_dir = 3", "state_dir"),
        ("inventory = '/etc/fleet.yaml'", "give a .toml file"),
        ("log = 'nowhere'", "log"),
        ("enforce = ", "end of document"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str) -> None:
    """A misspelt key, a wrong type, a number out of bounds: the file and the key are named."""
    with pytest.raises(UsageError) as refusal:
        parse_config(text.encode(), HERE)
    assert str(refusal.value).startswith("hook.toml: ")
    assert problem in str(refusal.value)


@pytest.mark.parametrize("occasion", ["prolog", "healthcheck"])
def test_a_budget_that_nobody_waits_for_is_refused(occasion: Occasion) -> None:
    """The script in prolog.d ends the hook after 9 s: 20 s would be cut off in the middle."""
    config = HookConfig(budget_s=20, healthcheck_budget_s=20)
    refuse_longer(config, occasion, None)
    refuse_longer(config, occasion, 21)
    with pytest.raises(UsageError, match=r"budget_s = 20 s .* after 9 s; set at most 8 in"):
        refuse_longer(config, occasion, 9)
    # The least budget is 2 s: there is no value for hook.toml.
    with pytest.raises(UsageError, match=r"after 2 s; raise LIMIT_S in that script to at least 21"):
        refuse_longer(config, occasion, 2)


_WORDS = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=200).map(str.encode),
    st.integers(0, len(WHOLE)).map(lambda at: WHOLE[:at]),
    st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=4)).map(
        lambda cut: WHOLE[: cut[0]] + cut[1] + WHOLE[cut[0] :]
    ),
)


@given(_WORDS)
@draws(300, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.slow
def test_any_bytes_are_a_configuration_or_one_line(content: bytes) -> None:
    """Damaged in any way, it is read or refused in one printable line; nothing else is raised."""
    message = ""
    try:
        parse_config(content, HERE)
    except UsageError as error:
        message = str(error)
    assert message.isprintable()


@root_only
def test_a_strangers_word_decides_nothing(tmp_path: Path) -> None:
    """A file, or a folder on the way to it, that another user may change is refused unread."""
    path = tmp_path / "hook.toml"
    path.write_bytes(WHOLE)
    assert load_config(path).enforce
    path.chmod(0o666)
    with pytest.raises(UsageError, match="every user may write to"):
        load_config(path)
    path.chmod(0o644)
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(UsageError, match=r"is not used: .* belongs to nobody"):
        read_trusted(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """What is no regular file, or is not there, is refused at once."""
    os.mkfifo(tmp_path / "hook.toml")
    for name in ("hook.toml", "nowhere.toml"):
        with pytest.raises(UsageError, match="give a readable file"):
            read_trusted(tmp_path / name)


def test_a_large_configuration_is_refused(tmp_path: Path) -> None:
    """It decides before every job: what is no hook.toml must not take its time or memory."""
    path = tmp_path / "hook.toml"
    path.write_bytes(b"#" * (64 << 10))
    assert load_config(path) == HookConfig()
    path.write_bytes(b"#" * (64 << 10) + b"#")
    with pytest.raises(UsageError, match="it is larger than 64 KiB"):
        load_config(path)
    with pytest.raises(UsageError, match="line 1 has more than 64 dots"):
        parse_config(b"a" + b".a" * 10_000 + b"=1", path)
