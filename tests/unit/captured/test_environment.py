"""Environments and launch scripts that somebody pasted: what they set, for which node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.captured.environment import DUMP, SCRIPT, read
from preflight.commands.read import captured, judge_captured
from preflight.verdict import Outcome
from tests.unit.captured.sound import sound

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "env"
CASES = sorted(CORPUS.glob("*.txt"))
SEEN_IN_SENTENCES = {
    "NCCL_TIMEOUT has no effect": ("NCCL_TIMEOUT has no effect",),
    "all fast transports disabled on purpose": ("all fast paths are switched off",),
    "--tp 12 vs 24": ("--tp 12", "--tp 24"),
    "--dist-init-addr differs": ("--dist-init-addr",),
    "NCCL_IB_HCA mlx5_0 vs mlx5_1": ("NCCL_IB_HCA=mlx5_0", "NCCL_IB_HCA=mlx5_1"),
    "--gpu-bind=per_task:1": ("--gpu-bind=per_task:1",),
    "--ntasks-per-gpu=1 (implicit binding)": ("--ntasks-per-gpu=1",),
}
"""How a label's words look in ours."""

NOT_IN_THE_TEXT = (
    # The script is the mended one: the mistake stands in a comment, which is no setting.
    "NPROC_PER_NODE > visible GPUs",
    # Prose about a log line, without any setting.
    "rendezvous port inside the ephemeral range",
)


def environ(text: str) -> dict[str, str]:
    """What one text sets."""
    found = read(text)
    assert found is not None
    assert found.environ is not None
    return found.environ


def sentences(text: str) -> dict[str, str]:
    """What the checks of a run say of a text, of those that do not pass it."""
    fine = (Outcome.OK, Outcome.NOT_RUN)
    entries = judge_captured({"given": captured(text)})
    return {
        f"{one.check}{one.subject.removeprefix('given')}": one.verdict.sentence
        for one in entries
        if one.verdict.outcome not in fine
    }


@pytest.mark.corpus
@pytest.mark.skipif(not CASES, reason="the corpus of real outputs is not beside the project")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_real_scripts(path: Path) -> None:
    """Every mistake that a label names and the text holds is told; healthy ones are not accused."""
    wrong = json.loads(path.with_suffix(".json").read_text())["misconfig"]
    told = " ".join(sentences(path.read_text()).values())
    for one in wrong:
        if one not in NOT_IN_THE_TEXT:
            for words in SEEN_IN_SENTENCES[one]:
                assert words in told
    if not wrong:
        assert told == ""


@pytest.mark.parametrize(
    "text",
    ["NCCL_IB_DISABLE=1\nPATH=/bin\n", "NCCL_P2P_DISABLE=1\nPATH=/bin\n"],
)
def test_of_a_node_that_is_not_told_nothing_is_said(text: str) -> None:
    """Whether a way that is switched off is there, and whether there are GPUs, is not known."""
    said = {one.check: one.verdict for one in judge_captured({"job.env": captured(text)})}
    assert said["env.transports"].outcome is Outcome.NOT_RUN
    assert "nothing here shows" in said["env.transports"].sentence
    assert "no GPUs here" not in said["env.debugging"].sentence
    assert said["env.debugging"].outcome is Outcome.NOT_RUN


def test_a_dump_is_read_to_the_letter() -> None:
    """`env` quotes nothing: quotes and blanks belong to the value; foreign names are left out."""
    text = "PATH=/usr/bin\nHOME=/root\nNCCL_DEBUG=INFO \nNCCL_IB_DISABLE='1'\nSECRET=x\n"
    found = read(text)
    assert found is not None
    assert found.kind == DUMP
    assert found.environ == {"NCCL_DEBUG": "INFO ", "NCCL_IB_DISABLE": "'1'"}
    assert environ("A=1\0NCCL_DEBUG=INFO\0") == {"NCCL_DEBUG": "INFO"}


SCRIPTS = {
    "exports": 'export NCCL_DEBUG="WARN" # NCCL_DEBUG=INFO\nexport NCCL_ALGO=Ring; echo NCCL_X=1',
    "declare": 'declare -x NCCL_DEBUG="WARN"\ndeclare -x NCCL_ALGO="Ring"',
    "inline": "NCCL_DEBUG=WARN NCCL_ALGO=Ring \\\n  torchrun --nproc-per-node=8 train.py",
    "csh": "setenv NCCL_DEBUG WARN\nsetenv NCCL_ALGO Ring",
    "mpirun": "mpirun -np 8 -x NCCL_DEBUG=WARN -x NCCL_ALGO=Ring ./all_reduce_perf",
    "docker": "docker run --gpus all -e NCCL_DEBUG=WARN --env NCCL_ALGO=Ring image",
    "dockerfile": "FROM x\nENV NCCL_DEBUG=WARN\nENV NCCL_ALGO Ring",
    "yaml": 'env:\n  NCCL_DEBUG: "WARN"\n  NCCL_ALGO: Ring  # rings\n',
    "pod": '- name: NCCL_DEBUG\n  value: "WARN"\n- name: NCCL_ALGO\n  value: "Ring"\n',
    "python": 'os.environ["NCCL_DEBUG"] = "WARN"\nos.environ.setdefault("NCCL_ALGO", "Ring")',
    "defaults": "export NCCL_DEBUG=${NCCL_DEBUG:-WARN}\nA=Ring\nexport NCCL_ALGO=$A",
    "srun": "srun --export=ALL,NCCL_DEBUG=WARN,NCCL_ALGO=Ring python train.py",
    "prompt": "$ export NCCL_DEBUG=WARN\nroot@gpu1:~# export NCCL_ALGO=Ring",
    "unset": "export NCCL_PROTO=LL NCCL_DEBUG=WARN NCCL_ALGO=Ring\nunset NCCL_PROTO",
}


@pytest.mark.parametrize("form", SCRIPTS)
def test_every_form_of_a_setting(form: str) -> None:
    """People set variables in a dozen ways; comments and echoed words are none of them."""
    found = environ(SCRIPTS[form])
    assert {name: one for name, one in found.items() if not name.startswith("--")} == {
        "NCCL_DEBUG": "WARN",
        "NCCL_ALGO": "Ring",
    }


def test_what_only_the_shell_knows_is_not_judged() -> None:
    """A value that is computed is left out; a name that nothing reads is wrong all the same."""
    text = "export NCCL_SOCKET_IFNAME=$(ip route | awk '{print $5}')\nexport NCCL_TIMEOUT=$T\n"
    assert environ(text + "export NCCL_IB_TIMEOUT=`cat t`") == {"NCCL_TIMEOUT": ""}
    assert list(sentences(text)) == ["env.exists"]


@pytest.mark.parametrize(
    "text",
    [
        (
            "# node 0\nexport NCCL_ALGO=Ring\ntorchrun --node-rank 0 a.py\n"
            "# node 1\nexport NCCL_ALGO=Tree\ntorchrun --node-rank 1 a.py"
        ),
        "NCCL_ALGO=Ring torchrun --node_rank=0 a.py\nNCCL_ALGO=Tree torchrun --node_rank=1 a.py",
        "[host 1]\nNCCL_ALGO=Ring\n[host 2]\nNCCL_ALGO=Tree\n",
    ],
)
def test_nodes_of_one_job_are_held_against_each_other(text: str) -> None:
    """By headings or by their numbers: what must be the same and is not fails on both."""
    found = read(text)
    assert found is not None
    assert len(found.environs) == 2
    told = sentences(text)
    assert len([name for name in told if name.startswith("env.ranks")]) == 2
    assert all("NCCL_ALGO" in one for one in told.values())


def test_a_launch_line_copied_with_its_number() -> None:
    """Two headings, one node rank: both nodes would be number 0."""
    line = "torchrun --nnodes 2 --node-rank 0 a.py"
    told = sentences(f"# node 1\n{line}\n# node 2\n{line}\n")
    assert "two nodes cannot have one number" in told["env.ranks (node 1)"]


def test_slurm_directives_count() -> None:
    """#SBATCH lines are comments to the shell, and settings to Slurm."""
    text = "#!/bin/bash\n#SBATCH --gpu-bind=per_task:1\nexport NCCL_DEBUG=WARN\nsrun python a.py\n"
    assert environ(text)["SLURM_GPU_BIND"] == "per_task:1"
    assert "shows each task only its own GPU" in sentences(text)["env.contradictions"]
    pbs = (
        "#PBS -l select=1:ngpus=1\nNPROC_PER_NODE=4\ntorchrun --nproc_per_node=$NPROC_PER_NODE a.py"
    )
    assert "rank 1 gets" in sentences(pbs)["env.contradictions"]


@pytest.mark.proves("env.exists", unknown="the script is cut off in the middle of a line")
@pytest.mark.proves("env.deprecated", unknown="the script is cut off in the middle of a line")
@pytest.mark.proves("env.contradictions", unknown="the script is cut off in the middle of a line")
@pytest.mark.proves("env.transports", unknown="the script is cut off in the middle of a line")
@pytest.mark.proves("env.debugging", unknown="the script is cut off in the middle of a line")
@pytest.mark.parametrize(
    "text",
    [
        "export NCCL_DEBUG=WARN\nexport NCCL_ALGO=\\",
        'export NCCL_DEBUG=WARN\nexport NCCL_ALGO="Ri',
        "HOME=/root\nNCCL_DEBUG=WARN\nNCCL_SOCK",
        "NCCL_DEBUG=WARN\nHOME=\ufffd\x03\x04\n",
    ],
)
def test_a_damaged_text_proves_nothing(text: str) -> None:
    """What is missing could have been the mistake: no check passes it."""
    outcomes = {one.verdict.outcome for one in judge_captured({"given": captured(text)})}
    assert outcomes == {Outcome.UNKNOWN}


@pytest.mark.proves("env.ranks", unknown="one of the nodes' scripts is cut off")
def test_a_damaged_comparison_proves_nothing() -> None:
    """Two nodes, the second cut: that they agree is not known."""
    text = "# node 1\nexport NCCL_ALGO=Ring\n# node 2\nexport NCCL_ALGO=Ring\nexport NCCL_PR\\"
    verdicts = {one.check: one.verdict for one in judge_captured({"given": captured(text)})}
    assert verdicts["env.ranks"].outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "hello world",
        "rank: 0\nexitcode: -9\n",
        "gpu041:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0",
        "MemTotal: 1 kB\nMemFree: 1 kB",
        "PATH=/bin\nHOME=/root\n",
        "python train.py --lr 0.1",
        "bash: torchrun: command not found",
    ],
)
def test_what_is_no_environment_is_not_taken_for_one(text: str) -> None:
    """Logs, other tools' outputs and scripts that set nothing of ours are left to others."""
    assert read(text) is None


@given(st.text(max_size=200))
def test_any_text_is_read_without_a_crash(text: str) -> None:
    """Whatever it is, it is refused, or an environment or script whose verdicts are sound."""
    found = read(text)
    assert found is None or found.kind in (DUMP, SCRIPT)
    sound(found)


@given(
    st.lists(
        st.sampled_from(
            ("export ", "NCCL_DEBUG=", "WARN", '"', "'", "\\\n", "\n", "$", "${", "}", "`", "#",
             "# node 1", ";", "|", " ", "torchrun --node-rank ", "0", "\0", "\r", "=", ": ", "éß")
        ),
        max_size=30,
    ).map("".join)
)  # fmt: skip
def test_any_script_is_read_without_a_crash(text: str) -> None:
    """Quotes left open, expansions cut short, headings without a body."""
    found = read(text)
    assert found is None or found.kind in (DUMP, SCRIPT)
    sound(found)
