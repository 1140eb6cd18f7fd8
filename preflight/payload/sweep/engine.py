"""torchrun's own engine, in process: the sweep starts as the job will, without a second import.

With `start_method="fork"` torch is imported once per node; CUDA is not touched before the fork.
torch's elastic rendezvous exchanges pickles of its own through the store; nothing of ours does.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings

from . import rendezvous

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import plan

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "GLOG_minloglevel": "2",
    # Ask NVML, not the CUDA runtime, whether there are GPUs: a fork must stay possible.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def prepare() -> None:
    """Set what torch reads at import, and keep it quiet; call before importing it."""
    os.environ.update(_ENVIRONMENT)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    # multiprocessing closes sys.stdin in each fork: under a lock that a reading thread may hold.
    os.register_at_fork(after_in_child=_forget_stdin)


def _forget_stdin() -> None:
    sys.stdin = None


def launch(
    go: plan.Go, local: str, store: tuple[str, int], rank_main: Callable[..., None], *arguments: Any
) -> None:
    """Rendezvous with the other agents and run `rank_main(*arguments)` in each local rank.

    Returns when this agent's ranks are done and the others' are too (or 300 s later: callers
    do not wait for that). Raises what torch raises when the rendezvous fails.
    """
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    rendezvous.hasten(dynamic_rendezvous)
    host, port = store
    wanted = {
        "min_nodes": go.min_nodes,
        "max_nodes": go.nodes,
        "nproc_per_node": go.rails,
        "run_id": "preflight-" + go.run,
        "rdzv_backend": "c10d",
        "rdzv_endpoint": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "rdzv_configs": {
            "is_host": "false",
            "join_timeout": int(go.join_s),
            "last_call_timeout": int(go.last_call_s),
            "read_timeout": int(go.join_s),
        },
        "max_restarts": 0,
        "monitor_interval": 0.1,
        "start_method": "fork",
        "local_addr": local,
        "logs_specs": _no_logs(),
        "signals_to_handle": "",  # ours stay: they end the agent at once
    }
    known = LaunchConfig.__dataclass_fields__  # older torch has fewer
    config = LaunchConfig(**{name: value for name, value in wanted.items() if name in known})
    elastic_launch(config, rank_main)(*arguments)


def _no_logs() -> Any:
    """Where ranks log to: nowhere. torchrun's default makes a folder under /tmp."""
    from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs

    class NoLogs(LogsSpecs):  # type: ignore[misc]
        root_log_dir = ""

        def reify(self, envs: dict[int, dict[str, str]]) -> Any:
            nowhere = dict.fromkeys(envs, "")
            for environment in envs.values():
                environment["TORCHELASTIC_ERROR_FILE"] = ""
            return LogsDest(stdouts=nowhere, stderrs=dict(nowhere), error_files=dict(nowhere))

    return NoLogs()
