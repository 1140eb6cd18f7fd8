"""Options that cannot be meant when every rank of a job is a pytest; and what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.errors import UsageError

if TYPE_CHECKING:
    import pytest

    from preflight.torchrun.place import Place

_THEIRS = "under torchrun every rank is a pytest, and rank 0 alone judges"

_PYTEST = {
    "numprocesses": ("-n", "leave it out: the ranks are the workers here"),
    "tx": ("--tx", "leave it out: the ranks are the workers here"),
    "maxfail": ("-x (--maxfail)", "use --preflight-fail-fast=stage|first|never"),
    "lf": ("--lf", "choose checks with --preflight-checks or -k"),
    "failedfirst": ("--ff", "choose checks with --preflight-checks or -k"),
    "stepwise": ("--sw", "choose checks with --preflight-checks or -k"),
    "random_order_enabled": ("--random-order", "leave it out: the stages have their order"),
    "random_order_bucket": ("--random-order-bucket", "leave it out: the stages have their order"),
    "random_order_seed": ("--random-order-seed", "leave it out: the stages have their order"),
    "reruns": ("--reruns", "leave it out: preflight retests by itself"),
    "force_flaky": ("--force-flaky", "leave it out: preflight retests by itself"),
    "count": ("--count", "leave it out: preflight repeats by itself"),
}
"""By pytest's own name of the option. Some belong to other plugins and may not be there."""

_HARMLESS = {"count": (1,), "maxfail": (0,)}

_OURS = {
    "preflight_nodes": "the nodes are those of its ranks: leave it out, or exclude some",
    "preflight_transport": "the ranks are the way in: leave it out",
    "preflight_python": "the ranks' own Python is the job's: leave it out",
    "preflight_env_file": "the ranks' own environment is the job's: leave it out",
    "preflight_launch": "torchrun's own arguments are the job's: leave it out",
    "preflight_replay": "a replay needs nobody: run it outside torchrun",
}

_NO_STORE = (
    "this torchrun leaves the rendezvous store to the job (TORCHELASTIC_USE_AGENT_STORE=False): "
    "unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE and use --rdzv-backend=c10d or static for this run"
)


def refuse(config: pytest.Config, place: Place) -> None:
    """Raise UsageError for what does not go together; every rank comes to the same conclusion."""
    for name, (option, advice) in _PYTEST.items():
        said = config.getoption(name, None)
        if said and said not in _HARMLESS.get(name, ()):
            raise UsageError(f"{option} does not go with torchrun: {_THEIRS}; {advice}")
    if config.pluginmanager.hasplugin("randomly"):
        raise UsageError(
            f"pytest-randomly does not go with torchrun: {_THEIRS}; switch it off: -p no:randomly"
        )
    for name, advice in _OURS.items():
        if config.getoption(name, None) is not None:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} does not go with torchrun: {advice}")
    if not place.agent_store:
        raise UsageError(_NO_STORE)
