"""How nodes are reached: paramiko, OpenSSH, srun, ranks of torchrun, this machine.

`ways` chooses. SSH: `ssh_config` and `host_keys` serve `paramiko_ssh` and `openssh`, which has its
logins from `openssh_logins`. Slurm: `srun` starts relays, which call back to `relay`. torchrun:
`torchrun_ranks` asks ranks through `job_store_hub`; each is a `rank_follower`; their notes are in
`job_store`. Over any of them `bundle` sends the payload, and `payload_session` talks with it.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any

from preflight.core.files import shipped_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from preflight.core.remote_command import ReachError


@cache
def _errors() -> dict[str, Any]:
    return shipped_table(__file__, "reach_errors.toml")


def reach_error(kind: str, **values: object) -> ReachError:
    """Return the error of that kind in reach_errors.toml, with these values filled in."""
    from preflight.core.remote_command import ReachError  # it loads msgspec

    row = _errors()[kind]
    return ReachError(row["step"], *(row[part].format(**values) for part in ("sentence", "advice")))


def start_thread(work: Callable[..., object], *args: object, name: str = "") -> threading.Thread:
    """Do `work` in a thread that does not keep the process alive."""
    thread = threading.Thread(target=work, args=args, name=name or None, daemon=True)
    thread.start()
    return thread
