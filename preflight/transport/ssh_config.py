"""What is said of a node that SSH does not reach: the same words whichever SSH was used."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from preflight.transport.legible import legible
from preflight.transport.protocol import ReachError
from preflight.transport.sshask import config_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from preflight.transport.sshconfig import Route


def no_name(name: str, reason: str) -> ReachError:
    """Its name leads nowhere."""
    return ReachError(
        "name",
        f"the name {legible(name, 80)!a} does not resolve: {reason}",
        "correct the name in the node list, or give the node an `address` in the inventory",
    )


def refuses(where: str) -> ReachError:
    """Nobody listens."""
    return ReachError(
        "route",
        f"{where} refuses connections",
        "start sshd on the node, or correct its `port` in the inventory",
    )


def no_answer(where: str, seconds: float) -> ReachError:
    """Nothing comes back at all."""
    return ReachError(
        "route",
        f"no answer from {where} in {seconds:.0f} s",
        "look whether the node is up, and whether a firewall drops the port",
    )


def unreachable(where: str, reason: str) -> ReachError:
    """The network itself says no."""
    return ReachError(
        "route",
        f"{where} cannot be reached: {reason}",
        "look whether the node is up, and at the route to its network",
    )


def handshake_fails(where: str, why: str) -> ReachError:
    """Somebody speaks SSH there, but not with us."""
    return ReachError(
        "route",
        f"{where} greets, but the SSH handshake fails: {why}",
        "look at sshd's log on the node; `ssh -v` shows what the two sides offer",
    )


def never_speaks(where: str, seconds: float) -> ReachError:
    """Somebody accepts and stays silent."""
    return ReachError(
        "route",
        f"{where} accepts connections and never speaks: no SSH greeting in {seconds:.0f} s",
        "look at sshd on the node: it hangs, or something else listens there",
    )


def closes_early(where: str) -> ReachError:
    """Somebody accepts and hangs up."""
    return ReachError(
        "route",
        f"{where} accepts connections and closes them before the SSH greeting",
        "look at sshd's log on the node (MaxStartups, PerSourcePenalties, full disk)",
    )


def not_ssh(where: str, why: str) -> ReachError:
    """Something else listens there."""
    return ReachError(
        "route", f"{where} does not speak SSH: {why}", "correct the node's `port` in the inventory"
    )


def login_wants_more(route: Route, methods: Sequence[str]) -> ReachError:
    """A key alone does not open this door."""
    return ReachError(
        "login",
        f"{route.whom} wants more than a key: {legible(', '.join(methods), 80)}",
        "allow login by key alone for this user; preflight never answers a prompt",
    )


def login_slow(route: Route) -> ReachError:
    """The door neither opens nor shuts."""
    return ReachError(
        "login",
        f"the login of {route.whom} had no answer in time",
        "look at the node's load, and at what its login waits for (LDAP, a network home)",
    )


def login_refused(route: Route, tried: Sequence[str], unusable: Sequence[str]) -> ReachError:
    """Say what was tried, and give the command that shows the same refusal."""
    without = f"; not usable: {', '.join(unusable)}" if unusable else ""
    if tried:
        sentence = f"{route.whom} is refused with {', '.join(tried)}{without}"
        remedy = "add the key's public half to that user's ~/.ssh/authorized_keys on the node"
    else:
        sentence = f"there is no key to log in with as {route.whom}{without}"
        remedy = "make a key usable without a prompt (load it into ssh-agent)"
    return ReachError(
        "login",
        sentence,
        f"{remedy}, or correct `user` and `identity_file` in the inventory; "
        f"this must work: `{shlex.join([*by_hand(route), 'true'])}`",
    )


def by_hand(route: Route) -> list[str]:
    """The ssh that a person would type, without the command to run."""
    identity = ["-i", route.identity_files[0]] if len(route.identity_files) == 1 else []
    options = [*config_option(route.ssh_config), "-o", "BatchMode=yes", "-p", str(route.port)]
    return ["ssh", *options, *identity, f"{route.user}@{route.typed or route.hostname}"]
