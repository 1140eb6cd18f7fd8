"""`env.transports`, `env.ranks`, `env.debugging`: settings against the node, and against others."""

from __future__ import annotations

import pytest

from preflight.checks.env import test_contradictions, test_variables
from preflight.facts.model import NicPort
from preflight.fleet.model import Expected, Job
from preflight.verdict import Outcome
from tests.unit.facts.builders import facts, nic, pairs

NODE = facts()
BARE = facts(gpus=None, gpu_pairs=None, nics=None)
UP = facts(nics=(nic(0, ports=(NicPort(1, state="4: ACTIVE"),)), nic(1, ports=())))
PROMISED = Expected(nics=8, origin="fleet.toml [group.train]")
OFF = {"NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


@pytest.mark.proves("env.transports", finds="NCCL_IB_DISABLE=1 where NICs are expected")
def test_rdma_switched_off_where_it_is_promised_fails() -> None:
    """The expectation decides, and is named with its number."""
    verdict = test_variables.judge_transports({"NCCL_IB_DISABLE": "1"}, "job.env", PROMISED, NODE)
    assert verdict.outcome is Outcome.FAIL
    assert "8 RDMA NICs per node expected (fleet.toml [group.train])" in verdict.sentence


@pytest.mark.parametrize(
    ("environ", "node", "words"),
    [
        ({"NCCL_IB_DISABLE": "1"}, UP, "1 RDMA NIC here with a port up"),
        ({"NCCL_NET": "socket"}, UP, "NCCL_NET=socket sends everything over TCP"),
        ({"NCCL_P2P_DISABLE": "1"}, NODE, "8 GPUs here with links up"),
        ({"NCCL_P2P_LEVEL": "LOC"}, NODE, "keeps the GPUs off NVLink"),
        ({"NCCL_NET_GDR_LEVEL": "LOC"}, NODE, "switches GPUDirect off"),
        (OFF, BARE, "all fast paths are switched off"),
    ],
)
def test_a_fast_way_switched_off_where_it_is_there_warns(
    environ: dict[str, str], node: object, words: str
) -> None:
    """The inventory does not expect it, but the node has it."""
    verdict = test_variables.judge_transports(environ, "", Expected(), node)  # type: ignore[arg-type]
    assert verdict.outcome is Outcome.WARN
    assert words in verdict.sentence


@pytest.mark.proves("env.transports", passes="variables that switch off nothing that the job needs")
@pytest.mark.parametrize(
    ("environ", "node"),
    [
        ({"NCCL_IB_DISABLE": "1"}, facts(nics=())),
        ({"NCCL_IB_DISABLE": "0", "NCCL_P2P_DISABLE": "0"}, UP),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}, BARE),
        (
            {"NCCL_P2P_DISABLE": "1"},
            facts(gpus=(), gpu_pairs=tuple(p for p in pairs() if p.p2p_read != "ok")),
        ),
    ],
)
def test_what_is_not_there_may_be_off(environ: dict[str, str], node: object) -> None:
    """Without NICs or peer access the switch costs nothing."""
    verdict = test_variables.judge_transports(environ, "", Expected(), node)  # type: ignore[arg-type]
    assert verdict.outcome is Outcome.OK


def job(**environs: dict[str, str]) -> Job:
    """Nodes with an environment each."""
    return Job(environ=environs, environ_origin="env-{node}")


@pytest.mark.proves("env.ranks", finds="one node with another NCCL_ALGO")
def test_a_node_that_disagrees_is_named_with_both_values() -> None:
    """The majority decides; what must be the same fails on the odd node alone."""
    usual, odd = {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}
    given = job(h1=usual, h2=odd, h3=usual)
    verdict = test_contradictions.judge_ranks("h2", given)
    assert verdict.outcome is Outcome.FAIL
    assert "NCCL_ALGO=Tree here, NCCL_ALGO=Ring on 2 of 3 nodes" in verdict.sentence
    assert test_contradictions.judge_ranks("h1", given).outcome is Outcome.OK


def test_two_nodes_that_disagree_both_say_so() -> None:
    """Between two there is no majority: each names the other."""
    given = job(h1={"NCCL_IB_DISABLE": "1"}, h2={})
    assert "NCCL_IB_DISABLE not set on h2" in test_contradictions.judge_ranks("h1", given).sentence
    assert "NCCL_IB_DISABLE=1 on h1" in test_contradictions.judge_ranks("h2", given).sentence


@pytest.mark.proves("env.ranks", passes="nodes with an interface name of their own")
def test_what_each_node_may_choose_is_no_difference() -> None:
    """Interface names, log files and numbers of ranks are each node's own."""
    one = {"NCCL_SOCKET_IFNAME": "eno1", "NCCL_DEBUG_FILE": "/tmp/a", "RANK": "0", "MY": "1"}
    two = {"NCCL_SOCKET_IFNAME": "ens9f0", "NCCL_DEBUG": "INFO", "RANK": "8", "MY": "2"}
    assert test_contradictions.judge_ranks("h1", job(h1=one, h2=two)).outcome is Outcome.OK


def test_what_is_only_odd_warns() -> None:
    """Other HCAs on like nodes may be meant."""
    given = job(h1={"NCCL_IB_HCA": "mlx5_0"}, h2={"NCCL_IB_HCA": "mlx5_1"})
    assert test_contradictions.judge_ranks("h1", given).outcome is Outcome.WARN


def test_a_number_that_two_nodes_have_fails() -> None:
    """A launch line copied with its node rank: both nodes wait for the other."""
    given = job(h1={"--node-rank": "0"}, h2={"--node-rank": "0"}, h3={"--node-rank": "2"})
    verdict = test_contradictions.judge_ranks("h2", given)
    assert verdict.outcome is Outcome.FAIL
    assert "--node-rank 0 here and on h1" in verdict.sentence
    assert test_contradictions.judge_ranks("h3", given).outcome is Outcome.OK


def test_ranks_of_one_node_that_disagree_fail() -> None:
    """Ranks that torchrun started tell their own environments: the odd local rank is named."""
    uneven: dict[str, tuple[str | None, ...]] = {"NCCL_PROTO": ("Simple", "Simple", None, "Simple")}
    given = Job(environ={"": {}, "h1": {}}, uneven={"h1": uneven}, environ_origin="torchrun rank")
    verdict = test_contradictions.judge_ranks("h1", given)
    assert verdict.outcome is Outcome.FAIL
    assert "local rank 2 has NCCL_PROTO not set, others NCCL_PROTO=Simple" in verdict.sentence


def test_one_environment_for_all_has_nothing_to_compare() -> None:
    """An allocation's environment says nothing of differences; none known is not run either."""
    assert test_contradictions.judge_ranks("h1", Job(environ={"": {}})).outcome is Outcome.NOT_RUN
    assert test_contradictions.judge_ranks("h1", Job()).outcome is Outcome.NOT_RUN


def test_a_secret_that_differs_is_not_shown() -> None:
    """The key of NCCL's encryption never reaches a sentence."""
    given = job(h1={"NCCL_PSK": "s3cret" * 8}, h2={"NCCL_PSK": "other1" * 8})
    verdict = test_contradictions.judge_ranks("h1", given)
    assert verdict.outcome is Outcome.FAIL
    assert "s3cret" not in verdict.sentence


@pytest.mark.proves("env.debugging", finds="NCCL_DEBUG=INFO with SUBSYS=ALL left on")
@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}, "logs every operation of every rank"),
        ({"NCCL_DEBUG": "trace"}, "logs every call"),
        ({"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "WARN"}, "every kernel launch waits"),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_DEBUG": "WARN"}, "against all ranks first"),
        ({"TORCH_FR_BUFFER_SIZE": "0", "NCCL_DEBUG": "WARN"}, "no flight recorder"),
        ({}, "a hang will leave nothing to read"),
    ],
)
def test_too_loud_and_too_quiet_warn(environ: dict[str, str], words: str) -> None:
    """Both are regretted only later: in the step time, or after the hang."""
    verdict = test_variables.judge_debugging(environ, "", NODE)
    assert verdict.outcome is Outcome.WARN
    assert words in verdict.sentence


@pytest.mark.proves("env.debugging", passes="NCCL's warnings and the flight recorder")
@pytest.mark.parametrize(
    "environ",
    [
        {"NCCL_DEBUG": "WARN"},
        {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV"},
        {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"},
        {"TORCHELASTIC_ERROR_FILE": "/tmp/error.json", "TORCH_DISTRIBUTED_DEBUG": "INFO"},
    ],
)
def test_enough_and_no_more_passes(environ: dict[str, str]) -> None:
    """Something is written when it matters."""
    assert test_variables.judge_debugging(environ, "", NODE).outcome is Outcome.OK


def test_without_gpus_silence_is_no_finding() -> None:
    """A laptop's shell has no NCCL to explain."""
    assert test_variables.judge_debugging({}, "", BARE).outcome is Outcome.NOT_RUN


def test_no_job_environment_is_not_run() -> None:
    """Nothing is judged by our login's variables."""
    assert test_variables.judge_debugging(None, "", NODE).outcome is Outcome.NOT_RUN
    assert test_variables.judge_transports(None, "", Expected(), NODE).outcome is Outcome.NOT_RUN
