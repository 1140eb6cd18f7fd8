"""`env.exists`, `env.values`, `env.deprecated`, `env.contradictions`: what people get wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preflight.captured.environment import read
from preflight.checks.env import test_contradictions, test_variables
from preflight.checks.env.variables import MOST_COMPARED
from preflight.facts.machine import Software, Torch
from preflight.fleet.job_environment import public_variables
from preflight.verdict import Outcome, Verdict
from tests.unit.facts.builders import facts

if TYPE_CHECKING:
    from preflight.facts.model import Facts

ORIGIN = "job.env"
JUDGES = {
    "env.exists": test_variables.judge_exists,
    "env.values": test_variables.judge_values,
    "env.deprecated": test_variables.judge_deprecated,
    "env.contradictions": test_contradictions.judge_contradictions,
}
HEALTHY = {
    "NCCL_SOCKET_IFNAME": "=ib0",
    "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
    "NCCL_IB_TIMEOUT": "22",
    "NCCL_DEBUG": "WARN",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1800",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "GLOO_SOCKET_IFNAME": "ib0",
    "OMP_NUM_THREADS": "16",
    "MASTER_ADDR": "gpu001",
    "SLURM_JOB_ID": "4711",
}


def values(**environ: str) -> Verdict:
    """What `env.values` says of these alone."""
    return test_variables.judge_values(environ, ORIGIN)


def test_an_environment_without_a_setting_says_so() -> None:
    """None of them is "all of them" of nothing."""
    verdict = test_variables.judge_exists({"HOME": "/home/alice"}, ORIGIN)
    assert verdict.outcome is Outcome.OK
    assert verdict.sentence == "it sets no variable of NCCL, torch, CUDA or gloo"


def test_each_advice_names_its_variable() -> None:
    """Several stand in one line, and "write 1" did not say of which."""
    verdict = values(NCCL_P2P_DISABLE="yes", NCCL_IB_GID_INDEX="-5", NCCL_SOCKET_IFNAME="a;b")
    assert set(verdict.advice.split("; ")) == {
        "NCCL_P2P_DISABLE: write 1",
        "unset NCCL_IB_GID_INDEX, or give it -1 to 255",
        "NCCL_SOCKET_IFNAME: write a,b",
    }


@pytest.mark.proves("env.exists", passes="a job's usual settings")
@pytest.mark.proves("env.values", passes="a job's usual settings")
@pytest.mark.proves("env.deprecated", passes="a job's usual settings")
@pytest.mark.proves("env.contradictions", passes="a job's usual settings")
@pytest.mark.parametrize("check", JUDGES)
def test_usual_settings_are_fine(check: str) -> None:
    """What well-kept launch scripts set is no finding."""
    verdict = JUDGES[check](HEALTHY, ORIGIN)
    assert verdict.outcome is Outcome.OK


@pytest.mark.parametrize("check", JUDGES)
def test_no_job_environment_is_not_run(check: str) -> None:
    """Our own login's variables are not the job's; the sentence says how to give them."""
    verdict = JUDGES[check](None, "")
    assert verdict.outcome is Outcome.NOT_RUN
    assert "--preflight-env-file" in verdict.sentence


@pytest.mark.proves("env.values", finds="NCCL_IB_TIMEOUT=1000: a dead link hangs the job")
@pytest.mark.parametrize("value", ["0", "32", "1000", "abc", "-1"])
def test_an_endless_timeout_fails(value: str) -> None:
    """Out of 1 to 31 the NIC waits for ever."""
    verdict = values(NCCL_IB_TIMEOUT=value)
    assert verdict.outcome is Outcome.FAIL
    assert "1 to 31: the NIC waits for ever" in verdict.sentence
    assert "use 20" in verdict.advice


@pytest.mark.parametrize(
    ("environ", "does"),
    [
        ({"NCCL_IB_TIMEOUT": "20"}, "a dead link will be noticed after 30 s"),
        ({"NCCL_IB_TIMEOUT": "14"}, "after 470 ms"),
        ({"NCCL_IB_TIMEOUT": "22", "NCCL_IB_RETRY_CNT": "1"}, "after 17 s"),
        ({"NCCL_SOCKET_RETRY_CNT": "34"}, "will be given up after 60 s"),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "600"}, "will end its rank after 10 min"),
    ],
)
def test_the_effect_of_a_setting_is_reported(environ: dict[str, str], does: str) -> None:
    """A number alone does not show how long a dead link goes unnoticed."""
    verdict = test_variables.judge_values(environ, ORIGIN)
    assert verdict.outcome is Outcome.OK
    assert does in verdict.sentence


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("NCCL_IB_DISABLE", "true", "is read as 0, which is off: it knows numbers only"),
        ("NCCL_IB_DISABLE", '"1"', "the quotes are part of the value"),
        ("NCCL_BUFFSIZE", "8M", "is read as 8: it knows no units"),
        ("NCCL_CROSS_NIC", "010", "is read as 8: a leading 0 means octal"),
        ("NCCL_IB_RETRY_CNT", "13", "is not 0 to 7"),
        ("NCCL_NTHREADS", "300", "is not one of 64, 128, 256, 512"),
        ("NCCL_MAX_CTAS", "9" * 5000, "is too large a number, and is ignored"),
        ("NCCL_P2P_LEVEL", "nvl", "is silently ignored"),
        ("NCCL_ALGO", "rign", "since 2.24 NCCL refuses to start"),
        ("NCCL_PROTO", "allreduce:LL256", "'LL256' is not one of LL, LL128, SIMPLE"),
        ("NCCL_SOCKET_IFNAME", "eth0, eth1", "the blank in ' eth1' is part of the name"),
        ("NCCL_SOCKET_IFNAME", "^=lo,^=docker0", "the sign in '^=docker0' is part of the name"),
        ("NCCL_SOCKET_IFNAME", "e", "a value of one character is ignored"),
        ("NCCL_IB_HCA", "mlx5_0;mlx5_1", "only a comma separates names"),
        ("NCCL_IB_HCA", "mlx5_0:one", "is not NAME:PORT"),
        ("NCCL_IB_HCA", "<your hca>", "is a placeholder that was never filled in"),
        ("NCCL_RAS_ADDR", "28028", "is not HOST:PORT"),
        ("GLOO_SOCKET_IFNAME", "^lo", "gloo takes exact names"),
        ("TORCH_NCCL_BLOCKING_WAIT", "on", "is neither 0 nor 1, and torch stops with it"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "", "is no number, and torch stops with it"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "4", "is not one of 0, 1, 2, 3"),
        ("TORCH_DISTRIBUTED_DEBUG", "verbose", "torch stops at import"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "64", "is not 1 to 32"),
        ("CUDA_DEVICE_ORDER", "pci_bus_id", "capitals count"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:true", "neither True nor False"),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb=64", "not followed by a colon"),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:8", "is 8, not above 20"),
        ("PYTORCH_ALLOC_CONF", "garbage_collection_treshold:0.8", "no setting of the allocator"),
        ("PYTORCH_ALLOC_CONF", "garbage_collection_threshold:80", "not between 0 and 1"),
    ],
)
def test_a_value_that_its_reader_does_not_take_fails(name: str, value: str, words: str) -> None:
    """NCCL reads what it can and logs nothing, torch stops; both are reported before the start."""
    verdict = values(**{name: value})
    assert verdict.outcome is Outcome.FAIL
    assert words in verdict.sentence
    assert verdict.advice


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("NCCL_IB_TIMEOUT", "8", "(usual: 14 to 25): a dead link will be noticed after 7.3 ms"),
        ("NCCL_DEBUG", "WARN ", "NCCL logs nothing at all"),
        ("NCCL_DEBUG_SUBSYS", "INIT,GRPAH", "'GRPAH' is not one of"),
        ("NCCL_SHM_DISABLE", "false", "which happens to be meant"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "the ranks hang until somebody kills them"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "99999", "will end its rank after 28 h"),
    ],
)
def test_an_unwise_value_warns(name: str, value: str, words: str) -> None:
    """What works and will be regretted is no reason not to start."""
    verdict = values(**{name: value})
    assert verdict.outcome is Outcome.WARN
    assert words in verdict.sentence


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_TIMEOUT", ""),
        ("NCCL_SOCKET_MAGIC", "0x1f"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG_SUBSYS", "^INIT,ENV"),
        ("NCCL_ALGO", "ring,collnetdirect;allreduce:^tree"),
        ("NCCL_IB_HCA", "^=mlx5_0::0:1,mlx5_1"),
        ("NCCL_NET_GDR_LEVEL", "SYS"),
        ("NCCL_NET_GDR_LEVEL", "5"),
        ("NCCL_PSK", "'"),
        ("NCCL_RAS_ADDR", "[::1]:28028"),
        ("TORCH_NCCL_BLOCKING_WAIT", "YES"),
        ("TORCH_DISTRIBUTED_DEBUG", "Detail"),
        ("PYTORCH_ALLOC_CONF", "roundup_power2_divisions:[256:1,512:2,>:4], backend:native"),
    ],
)
def test_what_looks_odd_and_is_right_passes(name: str, value: str) -> None:
    """Each reader's own grammar counts: base 0, any case, lists in brackets."""
    assert values(**{name: value}).outcome is Outcome.OK


@pytest.mark.proves("env.values", unknown="the value was removed when it was captured")
def test_a_value_that_was_hidden_is_unknown() -> None:
    """What was cut out of a captured text proves nothing."""
    verdict = values(NCCL_IB_HCA="***", NCCL_DEBUG="WARN")
    assert verdict.outcome is Outcome.UNKNOWN


def test_several_mistakes_are_one_verdict_the_worst_first() -> None:
    """A script may have many mistakes: three are in the sentence, all in the evidence."""
    environ = {"NCCL_IB_TIMEOUT": "0", "NCCL_DEBUG": "NO", "NCCL_NTHREADS": "7"}
    verdict = test_variables.judge_values({**environ, "NCCL_BUFFSIZE": "1G"}, ORIGIN)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence.endswith("; and 1 more: all in the JSON report (job.env)")
    assert len(verdict.evidence["findings"]) == 4


def test_what_hangs_silently_comes_first() -> None:
    """Among ten wrong values the endless timeout is named, wherever it is in the alphabet."""
    switches = {f"NCCL_{name}_DISABLE": "true" for name in ("IB", "P2P", "SHM", "CUMEM")}
    loud = {"NCCL_ALGO": "rign", "NCCL_BUFFSIZE": "8M", "NCCL_CROSS_NIC": "010"}
    verdict = test_variables.judge_values({**switches, **loud, "NCCL_IB_TIMEOUT": "1000"}, ORIGIN)
    assert verdict.sentence.startswith("NCCL_IB_TIMEOUT=1000")
    assert "the NIC waits for ever" in verdict.sentence


@pytest.mark.slow
def test_thousands_of_unknown_names_cost_no_comparison_each() -> None:
    """What is not compared is reported: the budget holds, and nothing passes unread."""
    many = {f"NCCL_WISH_{number:05d}": "1" for number in range(MOST_COMPARED + 10)}
    verdict = test_variables.judge_exists({**many, "NCCL_DEBUGG": "1"}, ORIGIN)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "11 of 523 unknown names were not looked up" in verdict.sentence


@pytest.mark.proves("env.exists", finds="NCCL_TIMEOUT, which nothing reads")
@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("NCCL_TIMEOUT", "pass timeout= to init_process_group"),
        ("CUDA_MEMORY_FRACTION", "set_per_process_memory_fraction"),
        ("NCCL_DEBUGG", "did you mean NCCL_DEBUG?"),
        ("NCLL_DEBUG", "did you mean NCCL_DEBUG?"),
        ("nccl_debug", "did you mean NCCL_DEBUG?"),
        ("NCCL_SOCKET_IFNMAE", "did you mean NCCL_SOCKET_IFNAME?"),
        ("NCCL_TIMEOUT_IB", "did you mean NCCL_IB_TIMEOUT?"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SECS", "did you mean TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC?"),
        ("PYTORCH_CUDA_ALOC_CONF", "did you mean PYTORCH_CUDA_ALLOC_CONF?"),
        ("NCCL_GO_FASTER", "ask the person who set it which program reads it"),
    ],
)
def test_a_name_that_nothing_reads_warns(name: str, advice: str) -> None:
    """The wish is named, and what would fulfil it."""
    verdict = test_variables.judge_exists({name: "1"}, ORIGIN)
    assert verdict.outcome is Outcome.WARN
    assert f"{name} has no effect" in verdict.sentence
    assert advice in verdict.advice


@pytest.mark.parametrize(
    "name",
    ["NCCL_VERSION", "NCCL_FASTRAK_IFNAME", "CUDA_HOME", "TORCH_CUDA_ARCH_LIST", "CUDA_MY_OWN",
     "NCCL_WORK_FIFO_BYTES", "TORCHELASTIC_RUN_ID", "rank", "RANK_OFFSET", "TORCH_HOME"],
)  # fmt: skip
def test_a_name_that_others_read_is_no_finding(name: str) -> None:
    """Plugins, images, builds and the site's own scripts have variables too."""
    assert test_variables.judge_exists({name: "1"}, ORIGIN).outcome is Outcome.OK


@pytest.mark.proves("env.deprecated", finds="NCCL_ASYNC_ERROR_HANDLING, which was renamed")
@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("NCCL_ASYNC_ERROR_HANDLING", "set TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("NCCL_MAX_NCHANNELS", "set NCCL_MAX_CTAS"),
        ("NCCL_IB_GDR_LEVEL", "set NCCL_NET_GDR_LEVEL"),
        ("NCCL_TREE_THRESHOLD", "use NCCL_ALGO"),
        ("NCCL_IB_CUDA_SUPPORT", "use NCCL_NET_GDR_LEVEL"),
    ],
)
def test_an_old_name_warns_and_names_the_new_one(name: str, advice: str) -> None:
    """Renamed and removed variables, with the version that did it."""
    verdict = test_variables.judge_deprecated({name: "1"}, ORIGIN)
    assert verdict.outcome is Outcome.WARN
    assert advice in verdict.advice


def _with(nccl: str | None = "2.21.5", torch: str = "2.6.0+cu124") -> Facts:
    """A node whose job's Python has these versions."""
    return facts(software=Software(torch=Torch(torch), nccl=nccl))


@pytest.mark.proves("env.exists", finds="NCCL_RAS_ENABLE, which this node's NCCL does not know yet")
@pytest.mark.parametrize(
    ("environ", "node", "words", "advice"),
    [
        (
            {"NCCL_RAS_ENABLE": "1"},
            _with(),
            "NCCL_RAS_ENABLE has no effect: NCCL reads it since 2.24, and here is 2.21.5",
            "unset NCCL_RAS_ENABLE, or update NCCL to 2.24 or later",
        ),
        (
            {"TORCH_FR_BUFFER_SIZE": "2000"},
            _with(torch="2.7.1"),
            "torch reads it since 2.8, and here is 2.7.1",
            "set TORCH_NCCL_TRACE_BUFFER_SIZE, or update torch to 2.8 or later",
        ),
        (
            {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
            _with(torch="2.1.2"),
            "torch reads it since 2.2, and here is 2.1.2",
            "set NCCL_ASYNC_ERROR_HANDLING, or",
        ),
    ],
)
def test_a_name_that_only_a_later_version_reads_warns(
    environ: dict[str, str], node: Facts, words: str, advice: str
) -> None:
    """The sentence has both versions, and the old name that does the same."""
    verdict = test_variables.judge_exists(environ, ORIGIN, node)
    assert verdict.outcome is Outcome.WARN
    assert words in verdict.sentence
    assert advice in verdict.advice


@pytest.mark.parametrize(
    ("environ", "node"),
    [
        ({"NCCL_RAS_ENABLE": "1"}, _with(nccl="2.24.3")),
        ({"NCCL_RAS_ENABLE": "1"}, _with(nccl=None)),
        ({"NCCL_RAS_ENABLE": "1"}, _with(nccl="nightly")),
        ({"NCCL_RAS_ENABLE": "1"}, facts(software=None)),
        ({"NCCL_RAS_ENABLE": "1"}, facts(software=Software())),
        ({"NCCL_RAS_ENABLE": "1", "LD_PRELOAD": "/opt/nccl/libnccl.so.2"}, _with()),
        ({"NCCL_IB_TIMEOUT": "22", "TORCH_NCCL_NAN_CHECK": "1"}, _with("2.4.2", "2.0.1")),
        ({"PYTORCH_ALLOC_CONF": "backend:native"}, _with(torch="2.9.0a0+145a3a7bda")),
        ({"TORCH_FR_BUFFER_SIZE": "9", "TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, _with()),
    ],
)
def test_a_name_that_this_version_reads_or_whose_reader_is_not_known_is_none(
    environ: dict[str, str], node: Facts
) -> None:
    """New enough, not known, another library preloaded, or set beside its old name."""
    assert test_variables.judge_exists(environ, ORIGIN, node).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("name", "node", "words"),
    [
        ("NCCL_LL_THRESHOLD", _with(), "NCCL 2.5 removed it, and here is 2.21.5"),
        (
            "NCCL_LL_THRESHOLD",
            _with("2.4.8"),
            "works with NCCL 2.4.8, which is here, and",
        ),
        ("NCCL_BLOCKING_WAIT", _with(), "(deprecated since torch 2.2, and here is 2.6.0+cu124)"),
    ],
)
def test_an_old_name_is_compared_with_the_installed_version(
    name: str, node: Facts, words: str
) -> None:
    """What was removed is gone from that version on, and worked before."""
    verdict = test_variables.judge_deprecated({name: "1"}, ORIGIN, node)
    assert verdict.outcome is Outcome.WARN
    assert words in verdict.sentence


def test_an_old_version_is_right_to_be_given_the_old_name() -> None:
    """Torch 2.1 reads no other: the new name in its place would do nothing."""
    verdict = test_variables.judge_deprecated(
        {"NCCL_BLOCKING_WAIT": "1"}, ORIGIN, _with(torch="2.1.2")
    )
    assert verdict.outcome is Outcome.OK


@pytest.mark.proves("env.contradictions", finds="two names of the allocator's settings that differ")
@pytest.mark.parametrize(
    ("environ", "outcome", "words"),
    [
        (
            {
                "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
                "PYTORCH_ALLOC_CONF": "backend:native",
            },
            "fail",
            "torch reads one in some places, the other in others",
        ),
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, "fail", "NCCL will not start"),
        ({"NCCL_MIN_CTAS": "32", "NCCL_MAX_CTAS": "16"}, "fail", "is above NCCL_MAX_CTAS=16"),
        ({"NCCL_ALGO": "nvls", "NCCL_NVLS_ENABLE": "0"}, "fail", "switches off"),
        ({"NCCL_MNNVL_ENABLE": "1", "NCCL_CUMEM_ENABLE": "0"}, "fail", "needs cuMem"),
        (
            {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
            "warn",
            "a wait that blocks takes the place of the other",
        ),
        (
            {"NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
            "warn",
            "the new name wins",
        ),
        ({"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5"}, "warn", "does nothing with NCCL_IB_D"),
        ({"NCCL_IB_GID_INDEX": "3", "NCCL_IB_ADDR_RANGE": "10.0.0.0/8"}, "warn", "chooses the GID"),
        ({"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"}, "warn", "is 128, NCCL ta"),
        ({"NCCL_DEBUG_SUBSYS": "INIT"}, "warn", "does nothing with NCCL_DEBUG not set"),
        (
            {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_BUFFER_SIZE": "0"},
            "warn",
            "has nothing to write",
        ),
        (
            {"NPROC_PER_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1"},
            "fail",
            'rank 2 gets "invalid device ordinal"',
        ),
        ({"SLURM_GPU_BIND": "per_task:1"}, "warn", "shows each task only its own GPU"),
        ({"SLURM_NTASKS_PER_GPU": "1"}, "warn", "binds each task to its own GPU"),
        ({"--master-port": "54147"}, "warn", "inside the ephemeral range 32768-60999"),
    ],
)
def test_settings_that_defeat_one_another(
    environ: dict[str, str], outcome: str, words: str
) -> None:
    """Each is right by itself: what the two do together is reported."""
    verdict = test_contradictions.judge_contradictions(environ, ORIGIN)
    assert verdict.outcome == outcome
    assert words in verdict.sentence
    assert verdict.advice


@pytest.mark.parametrize(
    "environ",
    [
        {"PYTORCH_CUDA_ALLOC_CONF": "backend:native", "PYTORCH_ALLOC_CONF": "backend:native"},
        {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"},
        {"SLURM_GPU_BIND": "none", "SLURM_NTASKS_PER_GPU": "1"},
        {"SLURM_GPU_BIND": "per_task:8"},
        {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "mlx5_0"},
        {"--nproc-per-node": "gpu", "CUDA_VISIBLE_DEVICES": "0"},
        {"--rdzv-endpoint": "gpu001:29400"},
    ],
)
def test_settings_that_go_together_pass(environ: dict[str, str]) -> None:
    """Alike values, a log that is on, masks that are lifted."""
    assert test_contradictions.judge_contradictions(environ, ORIGIN).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "token:hunter2"),
        ("NCCL_RAS_ADDR", "http://ann:hunter2@h1"),
        ("NCCL_ALGO", "http://ann:hunter2@h1:80/x"),
        ("NCCL_SOCKET_IFNAME", "eth0, password=hunter2"),
        ("NCCL_DEBUG", "https://hunter2@h1"),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend: hunter2"),
    ],
)
def test_a_password_inside_a_value_is_masked(name: str, value: str) -> None:
    """A login in an URL and what stands behind a telltale word are stars in every sentence.

    With stars in it, a value is unknown: torch may know what they hide.
    """
    captured = read(f"{name}={value}\nNCCL_IB_TIMEOUT=0\n")
    assert captured is not None
    for environ in (public_variables({name: value}), captured.environ):
        verdict = test_variables.judge_values(environ, ORIGIN)
        others = (environ or {}).keys() - {name}
        assert verdict.outcome is (Outcome.FAIL if others else Outcome.UNKNOWN)
        assert "hunter2" not in f"{environ}{verdict}"


def test_a_path_named_like_a_secret_is_left_whole() -> None:
    """A library path is none, whatever its folders are called."""
    path = {"LD_LIBRARY_PATH": "/opt/token:/opt/env=prod/lib:/opt/a%2fb:/opt/lib"}
    assert public_variables(path) == path
