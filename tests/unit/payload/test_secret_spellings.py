# ruff: noqa: E501  tables of commands
"""However a secret is spelled in a command or a variable, no piece of it leaves the node."""

from __future__ import annotations

import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from probe import redact

from preflight.core import text
from preflight.fleet.job_environment import public_variables
from tests.cases import CASES, draws

ALNUM = string.ascii_letters + string.digits
PIECE = 7
"""Characters in a row of a secret that nobody may see."""

WORDS = st.builds(
    "{}{}{}".format,
    st.sampled_from(string.ascii_letters),
    st.text(ALNUM + "!#$%^*_+~-", min_size=PIECE, max_size=30),
    st.sampled_from(["x1Q", "Qx!", "9z_Z", "pW#7"]),
)
"""Passwords as people and their managers make them."""
PREFIXES = (
    "hf_", "sk-proj-", "sk_live_", "rk_live_", "ghp_", "gho_", "github_pat_11", "glpat-", "xoxb-",
    "xapp-1-", "nvapi-", "AKIA", "AIza", "GOCSPX-", "ya29.a0", "dop_v1_", "npm_", "pypi-AgEI",
    "eyJhbGciOi", "hvs.CAES", "hvb.AAAA", "gsk_", "xai-", "pplx-", "r8_", "lsv2_pt_", "shpat_",
    "lin_api_", "SG.", "sq0csp-", "PMAK-", "phc_", "glsa_", "ATATT3x", "pscale_tkn_", "tskey-auth-",
    "figd_", "ntn_", "dckr_pat_", "whsec_", "wandb_v1_", "AGE-SECRET-KEY-1", "dp.st.dev.", "LTAI5",
)  # fmt: skip
PREFIXED = st.builds(
    "{}{}{}".format,
    st.sampled_from(PREFIXES),
    st.text(ALNUM, min_size=18, max_size=22),
    st.sampled_from(["", "x_y", ".Zq8kW3", "-7Bd", "=="]),
)
HEX = st.binary(min_size=16, max_size=32).map(bytes.hex)
TOKENS = PREFIXED | HEX
"""Known by their form, wherever they are."""

NAMES = st.sampled_from((
    "token", "password", "p", "x", "api_key", "apiKey", "wandb.login", "license", "pat", "cookie",
    "AccountKey", "opt", "code", "id", "sid", "conn", "seed-phrase", "dsn", "n", "account",
))  # fmt: skip

COMMANDS = (
    "train --{n}={s}", "train --{n} {s}", "train -x{s}", "train -x {s}", "train -{n}={s}",
    "train {n}={s}", "train /{n}={s}", "train /{n}:{s}", "train --opt=/{n}={s}",
    "train --opt /{n}={s}", "train --opt=/a/{n}={s}/b", "train a.b.{n}={s}", "train +a.{n}={s}",
    "train ++a.{n}={s}", "{n}={s} train", "env {n}={s} python train.py", "train {n}:{s}",
    'train {{"{n}":"{s}"}}', "train {{{n}:{s}}}", "train {n}=[{s},1]", "train u:{s}@h",
    "curl https://u:{s}@h/p", "curl https://{s}@h/p", "curl https://u%3A{s}%40h/p",
    "train --data https://u%3A{s}%40h/p", "train --data https%3A%2F%2Fu%3A{s}%40h",
    "train --data https://u%3a{s}@h", "curl https://h/p?{n}={s}&b=1", "train --data https://h?{n}={s}",
    "curl -H Authorization:\0Bearer\0{s} https://h", "curl -H Cookie:\0a={s};\0b=2 https://h",
    "curl -b {n}={s} h", "curl --cookie {s} h", "mysql -p{s} db", "mysql -uroot -p{s}",
    "sshpass -p {s} ssh h", "sshpass -p{s} ssh h", "docker run -e {n}={s} image",
    "docker run -e{n}={s} image", "train --{n}='{s}'", 'train --{n}="{s}"', "train '{s}'",
    "python -c login('{s}')", "python -c import\0x;x.login(token='{s}')", "bash -c {n}={s}\0train",
    "bash -lc echo\0{s}|x", "ssh h {n}={s}\0python\0x.py", "redis-cli -u redis://:{s}@h:6379/0",
    "-p{s}", "", "train --config u:{s}", "train --host me:{s}", "train --host u:{s}@h",
    "python -m train --{n} {s}", "python train.py -m {s}", "python -p{s}",
)  # fmt: skip
"""A blank ends a word; \\0 is a blank inside of one. {n}: an option's name, {s}: the secret."""
UNSEEN = (
    "java -D{n}={s} Main", "java -D {n}={s}", "train --{n}:{s}", "train --{n}=[{s},1]",
    "train --{n} a {s}", "train @{s}", "train {n}=@{s}", "train <(echo\0{s})", "train $({s})",
    "helm --set-string {n}={s}", "kubectl --from-literal={n}={s}", "ssh -o {n}={s} h",
    "ssh -o{n}={s} h", "train user={n};pwd={s}", "train Server=h;Pwd={s};",
    "psql jdbc:postgresql://h/db?user=u&password={s}", "train --dsn=mongodb+srv://u:{s}@h/db",
    "curl ftp://u:{s}@h:21", "curl -u u:{s} h", "curl -uu:{s} h", "curl --user=u:{s} h",
    "smbclient smb://D;u:{s}@h", "redis-cli -a{s}", "curl --header=X-Api-Key:{s} h",
    "curl -H X-Auth:{s} h", "curl --form {n}={s} h", 'curl --data-raw {{"{n}":\0"{s}"}} h',
    'train --{n}={{"a":"{s}"}}', "train\0--{n}\0{s}", "train\0{n}={s}", "sshd:\0{s}", "\0 {s}",
    "train -- {s}", "python -W {s} train.py", "su -c run\0{s}", "xargs sh -c {n}={s}",
    "train --data=u:{s}@h/x", "train --data=a?b={s}", "train --dataset=%7B{s}%7D",
    "train --model {s}@h", "train --run-path ?{s}", "train --log-dir=/{n}={s}",
    "train --config /{n}={s}/x", "train ~/{n}={s}", "train ./{n}={s}", "train {n}/{n}={s}.yaml",
    "train --module {n}={s}", "torchrun -m {n}={s}", "torchrun -m u:{s}@h", "{s}@h run",
    "u:{s}@h run", "=/{n}={s} run", "train ={s}", "train =={s}", "train --={s}", "train -={s}",
    "train [{s}]", "train ({s})", "train {n}=1,{s}", "train {n}=/a:{s}", "train 1,{s}",
    "train --{n}=1 {s}", "train --{n}=/a:{s}", "train --{n}\t{s}", "train \t{s}", "train \u00e9{s}",
    "perl -e {s}", "node -p {s}", "bash -s {s}", "bash -c {s}", "bash -x -c {s}", "sh -ec {s}",
    "expect -c send\0{s}", "openssl -passin pass:{s}", "gpg --passphrase-fd=0 --passphrase={s}",
    "vault kv put x {n}={s}", "aws --profile={n}:{s}", "git -c http.extraHeader=A:\0{s} fetch",
    "rclone :s3,{n}={s}:b", "mount //h/s -o u=a,{n}={s}", "deepspeed --{n}_file=data:{s}",
)  # fmt: skip
"""Written before the rules were last changed, and tried only after that."""
PLACES = (
    "train {s}", "train /mnt/{s}", "train --data /mnt/{s}/x", "train --model {s}", "train ./{s}.py",
    "python {s}.py", "/opt/{s}/bin/python train.py", "train --x=/a/{s}.json", "python -m {s}",
    "train s3://b/{s}", "train --data s3://b/{s}", "train {s}=1", "train --{s}=1", "{s}",
)  # fmt: skip
"""Where a word may stay: there only a token's form tells."""


def argv_of(spelled: str, name: str, secret: str) -> list[bytes]:
    """The words of a spelled command, which else hold no piece of the secret."""
    assume(not piece_in(spelled.format(n=name, s=""), secret))
    filled = [each.replace("\0", " ") for each in spelled.split(" ")]
    return [each.format(n=name, s=secret).encode() for each in filled]


def piece_in(shown: str, secret: str) -> str:
    """A piece of the secret that is shown; "" without one."""
    pieces = (secret[at : at + PIECE] for at in range(len(secret) - PIECE + 1))
    return next((one for one in pieces if one in shown), "")


@given(st.sampled_from(COMMANDS), NAMES, WORDS | TOKENS)
@draws(CASES)
def test_a_secret_in_a_command_does_not_leave(spelled: str, name: str, secret: str) -> None:
    """Not even a piece of it, in the job's own command and in another user's."""
    argv = argv_of(spelled, name, secret)
    for whole in (True, False):
        shown = redact.command(argv, whole=whole)
        assert not piece_in(shown, secret), shown


@given(st.sampled_from(UNSEEN), NAMES, WORDS | TOKENS)
@draws(CASES)
def test_a_secret_in_an_unusual_command_does_not_leave(
    spelled: str, name: str, secret: str
) -> None:
    """The same for spellings that nobody had in mind."""
    argv = argv_of(spelled, name, secret)
    for whole in (True, False):
        shown = redact.command(argv, whole=whole)
        assert not piece_in(shown, secret), shown


@given(st.sampled_from((*COMMANDS, *UNSEEN, *PLACES)), NAMES, TOKENS)
@draws(CASES)
def test_a_token_of_a_known_form_leaves_nowhere(spelled: str, name: str, token: str) -> None:
    """Not even as a part of a path, which else stays."""
    argv = argv_of(spelled, name, token)
    for whole in (True, False):
        shown = redact.command(argv, whole=whole)
        assert not piece_in(shown, token), shown


VALUES = (
    "{n}={s}", "x {n}={s}", '{n}="{s}"', "{n}: {s}", '{{"{n}": "{s}"}}', "a;{n}={s};b=1",
    "u:{s}@h", "a,u:{s}@h:1", "https://u:{s}@h/p", "https://{s}@h", "https://u%3A{s}%40h/p",
    "https://h/p?{n}={s}", "Cookie: {s}", "Cookie: a {s}", "Cookie: a={s}; b=1", "Authorization: Bearer {s}",
    "Bearer {s}", "Basic {s}", "password {s}", "x --token {s}", "x --password={s}", "x_pwd:{s}",
    "DefaultEndpointsProtocol=https;AccountKey={s};x=1", "key={s}", "{n}==1,pw={s}",
    "redis://:{s}@h:6379/0", '{n}="a {s}"', "password='a {s}'", "x --api-key {s}",
    "<password>{s}</password>", '{{\\"password\\":\\"{s}\\"}}', "u/{s}@h", "/u:{s}@h", "token('{s}')",
    "passwd => {s}", "password -> {s}", 'set_password("{s}")', "token[{s}]", "secret|{s}", "pw<{s}>",
)  # fmt: skip
TOKEN_VALUES = ("{s}", "a,{s}", "x={s}", "a:{s}", "a b {s} c", "'{s}'", "mlx5_0;{s}")


@given(
    st.tuples(st.sampled_from(VALUES), WORDS | TOKENS)
    | st.tuples(st.sampled_from(TOKEN_VALUES), TOKENS)
    | st.tuples(st.just("/opt/{s}:/usr/lib"), PREFIXED),
    NAMES,
)
@draws(CASES)
def test_a_secret_in_a_variable_is_not_kept(spelled: tuple[str, str], name: str) -> None:
    """The controller cuts it out of the job's environment, and a node out of nccl.conf."""
    value = spelled[0].format(n=name, s=spelled[1])
    assume(not piece_in(spelled[0].format(n=name, s=""), spelled[1]))
    kept = public_variables({"NCCL_ALGO": value})["NCCL_ALGO"], redact.setting("NCCL_ALGO", value)
    assert not any(piece_in(one, spelled[1]) for one in kept), kept


def test_nodes_and_controller_have_the_same_prefixes_of_tokens() -> None:
    """The payload can import nothing of the controller."""
    assert redact.TOKEN.pattern == text.TOKEN.pattern


MEGATRON = """
python -u /work/Megatron-LM/pretrain_gpt.py --tensor-model-parallel-size 8
--pipeline-model-parallel-size 4 --context-parallel-size 2 --sequence-parallel --num-layers 80
--hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention
--num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1
--global-batch-size 1024 --train-iters 500000 --lr 1.5e-4 --min-lr 1.5e-5 --lr-warmup-iters 2000
--lr-decay-iters 430000 --weight-decay 0.1 --clip-grad 1.0 --adam-beta1 0.9 --adam-beta2 0.95 --bf16
--use-flash-attn --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
--distributed-timeout-minutes 10 --log-interval 10 --save-interval 1000 --eval-interval 1000
--eval-iters 10 --save /ckpt/llama3-70b --load /ckpt/llama3-70b --data-path 1.0
/data/pile/shard_00_text_document --split 949,50,1 --num-workers 4 --vocab-file
/data/gpt2-vocab.json --merge-file /data/gpt2-merges.txt --tensorboard-dir /logs/tb
--init-method-std 0.008 --attention-dropout 0.0 --hidden-dropout 0.0 --rotary-base 500000
--no-masked-softmax-fusion --recompute-num-layers 1 --exit-interval 10000 --transformer-impl
transformer_engine --swiglu --untie-embeddings-and-output-weights --disable-bias-linear
"""


@pytest.mark.parametrize(
    "typed",
    [
        MEGATRON,
        "torchrun --nnodes=64 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=gpu001:29500 --rdzv-id=4711 --max-restarts=3 train.py --lr=3e-4 --config configs/llama3_8b.yaml",
        "torchrun --standalone --nproc_per_node 8 -m torchtitan.train --job.config_file ./llama3.toml",
        "deepspeed --hostfile /job/hostfile --num_gpus 8 --master_port 29501 train.py --deepspeed_config ds_config.json --train_batch_size 256 --fp16 true",
        "accelerate launch --config_file fsdp.yaml --num_processes 64 --mixed_precision bf16 --main_process_port 29500 sft.py --model_name meta-llama/Llama-3.1-8B --bf16 True",
        "python train.py --data /mnt/lustre/c4/en --output-dir /scratch/run_17 --seed 42",
        "python -m torch.distributed.run --nnodes 2 --node_rank 1 --master_addr 10.0.0.1 train.py",
        "python3.11 /opt/nemo/examples/nlp/megatron_gpt_pretraining.py trainer.devices=8 trainer.num_nodes=16 model.global_batch_size=2048 trainer.precision=bf16-mixed",
        "srun --nodes=16 --ntasks-per-node=8 --cpus-per-task 12 --mem=0 --gres=gpu:8 python train.py",
        "mpirun -np 16 --hostfile hosts.txt /opt/nccl-tests/build/all_reduce_perf -b 8 -e 8G -f 2 -g 1",
        "vllm serve --model mistralai/Mixtral-8x7B-Instruct-v0.1 --port 8000 --tensor-parallel-size 8",
        "ray start --head --port=6379 --num-gpus=8",
        "ray::IDLE",
        "python train.py --model s3://bucket/models/v2 --device cuda:0 --log-dir /logs/%j",
        "/usr/bin/python3 -u -X faulthandler /home/me/src/train.py --epochs=90 --amp",
    ],
)  # fmt: skip
def test_a_usual_command_keeps_what_an_engineer_needs(typed: str) -> None:
    """Program, script, names of options, numbers and paths: all but words of unknown options."""
    shown = redact.command([word.encode() for word in typed.split()], whole=True).split()
    words = typed.split()
    cut = [word for word, kept in zip(words, shown, strict=True) if word != kept]
    assert set(cut) <= {"transformer_engine", "python", "faulthandler", "-np"}, cut
    assert len(shown) == len(words)
