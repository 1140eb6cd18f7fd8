"""Secrets in command lines never leave a node."""

from __future__ import annotations

import base64
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from probe import redact

from preflight.checks.env.variables import variables
from preflight.fleet.job_environment import HIDDEN_NAMES, public_variables
from tests.cases import MANY

SECRET = "Zx9kQ27vLm3Tp8Rw"  # noqa: S105 (planted)
WORDS = st.text(alphabet=string.ascii_letters + string.digits + "-_./", min_size=1, max_size=12)
ALNUM = string.ascii_letters + string.digits


def cut(*argv: str, whole: bool = True) -> str:
    """Redact a command given as words."""
    return redact.command([word.encode() for word in argv], whole=whole)


@pytest.mark.parametrize(
    "argv",
    [
        ("train", "--token", SECRET),
        ("train", f"--token={SECRET}"),
        ("train", "--api-key", SECRET),
        ("train", f"--api_key={SECRET}"),
        ("train", f"--apiKey={SECRET}"),
        ("train", "--hf-token", SECRET, "--lr", "0.1"),
        ("train", "-password", SECRET),
        ("train", f"trainer.wandb.api_key={SECRET}"),
        ("env", f"WANDB_API_KEY={SECRET}", "python", "train.py"),
        ("env", f"AWS_SECRET_ACCESS_KEY={SECRET}", "python"),
        ("bash", "-c", f"export HF_TOKEN={SECRET}; exec python train.py"),
        ("bash", "-c", f"export HF_TOKEN='{SECRET}' && python train.py"),
        ("bash", "-c", f"wandb login --password {SECRET}"),
        ("curl", "-H", f"Authorization: Bearer {SECRET}", "https://host/"),
        ("curl", "-H", f"X-Api-Key: {SECRET}"),
        ("curl", "-u", f"me:{SECRET}", "https://host/"),
        ("git", "clone", f"https://me:{SECRET}@host/repo"),
        ("git", "clone", f"https://{SECRET}@host/repo"),
        ("curl", f"https://host/x?sig=1&access_token={SECRET}&y=2"),
        ("x", f'{{"password": "{SECRET}"}}'),
        ("sshpass", "-p", SECRET, "ssh", "host"),
        ("sshpass", f"-p{SECRET}", "ssh", "host"),
        ("mysql", f"-p{SECRET}"),
        ("login", "--passphrase", f"two words {SECRET}"),
        ("train", f"--secret_key={SECRET}"),
        ("train", "--pass", SECRET),
        ("train", "--wandb-key", SECRET),
        ("train", "--jwt", SECRET),
        ("train", "--pat", SECRET),
        ("train", "--license", SECRET),
        ("curl", f"https://host/blob?sv=1&sig={SECRET}"),
        ("docker", "login", "-u", "me", "-p", SECRET),
        ("docker", "run", "-e", f"TOKEN={SECRET}", "image"),
        ("redis-cli", "-a", SECRET),
        ("vault", "login", SECRET),
        ("train", f"--opts=a:{SECRET}"),
        ("train", f"key {SECRET}"),
        ("python", "-c", f"login('{SECRET}')"),
        ("bash", "-c", f"$(echo {SECRET})"),
        ("bash", "-lc", f"cd /data && A={SECRET} python train.py {SECRET}"),
        ("perl", "-e", SECRET),
        ("train", f"-D{SECRET}"),
        ("bash", "-c", f"PW='correct {SECRET} battery' python train.py"),
        ("bash", "-c", f'PW="a \\" {SECRET} b" python train.py'),
        ("bash", "-c", f"printf ';' {SECRET}"),
        ("bash", "-c", f"echo 'never closed {SECRET}"),
        ("bash", "-c", "login then hunter2"),
        ("bash", "-c", "login exec hunter2; exec python train.py"),
        ("bash", "-c", "mail -m hunter2"),
        ("mail", "-m", "hunter2"),
        ("python", "train.py", "-m", "hunter2"),
        ("python", "-m", "train", "-m", "hunter2"),
        ("torchrun", "--standalone", "train.py", "-m", "hunter2"),
        ("python", "train.py", "--config", "key:hunter2"),
        ("python", "train.py", "--config", "a,db_password:hunter2"),
        ("trainer --password hunter2", "--x"),
        ("train", "--api-key", "c2VjcmV0cGFzc3dvcmh1bnRlcjI=hunter2"),
        ("train", "--word", "hunter2=1"),
        ("train", "hunter2="),
        ("train", "hunter2=="),
        ("mysql", "-phunter2=1"),
        ("bash", "-s", "hunter2=1"),
        ("bash", "-s", "--", "hunter2="),
        ("bash", "-c", "TOKEN=$(printf hunter2 | base64); sleep 60"),
        ("bash", "-c", "PW=`echo hunter2 | rev`"),
        ("bash", "-c", "PW=( hunter2 hunter3 )"),
        ("sudo", "bash", "-lc", "case hunter2 in *) ;; esac"),
        ("python", "train.py", "--data", "pw:hunter2"),
        ("python", "train.py", "--data", "db_pw+hunter2"),
    ],
)
def test_a_secret_in_its_usual_places_is_cut(argv: tuple[str, ...]) -> None:
    """However people pass a password or token, it does not appear, and the program still does."""
    shown = cut(*argv)
    assert SECRET not in shown
    assert "hunter2" not in shown
    assert shown.startswith(argv[0].split()[0])


@pytest.mark.parametrize(
    "shape",
    [
        "hf_" + SECRET + "abcd",
        "sk-proj-" + SECRET,
        "ghp_" + SECRET,
        "AKIAIOSFODNN7EXAMPLE",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "0123456789abcdef0123456789abcdef01234567",
        "nvapi-" + SECRET,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    ],
)
def test_a_secret_without_a_name_is_known_by_its_shape(shape: str) -> None:
    """Keys of well-known services are cut wherever they stand."""
    assert shape not in cut("run", shape)
    assert shape not in cut("run", f"--x={shape}")
    assert shape not in cut("bash", "-c", f"run {shape} --and more")


@given(
    st.lists(WORDS, max_size=4), st.binary(min_size=30, max_size=64), st.lists(WORDS, max_size=4)
)
@MANY
def test_random_keys_never_survive_whole(before: list[str], key: bytes, after: list[str]) -> None:
    """A random key behind a telling option is gone, in hex and in base64, among any words."""
    for secret in (key.hex(), base64.b64encode(key).decode()):
        shown = cut("python", *before, f"--secret={secret}", *after)
        assert secret not in shown


@given(
    st.text(string.ascii_letters + "-_.", min_size=1, max_size=20),
    st.text(string.ascii_letters + string.punctuation, min_size=6, max_size=40),
    st.sampled_from(["--{0}={1}", "--{0} {1}", "-x {1}", "{0}={1}", "-{0}{1}"]),
)
@MANY
def test_no_unknown_option_shows_a_word(name: str, value: str, spelled: str) -> None:
    """However a secret's option is called: only numbers, paths and known options' values stay."""
    assume(name.rpartition(".")[2].replace("_", "-").lower() not in redact._HARMLESS)
    value = "S3" + value.replace("/", "").replace(".", "").replace(" ", "") + "cr3t"
    argv = ["train", *spelled.format("zz" + name, value).split(" ")]
    assert value not in cut(*argv)


@pytest.mark.parametrize("number", ["1234", "/home/me/token.txt"])
@pytest.mark.parametrize(
    "name", ["--pass", "--api-key", "--secret", "--pin", "--jwt", "--otp", "--sas", "--bearer"]
)
def test_of_a_secret_not_even_a_number_is_shown(name: str, number: str) -> None:
    """A password may be a number or a path, where the option's name says that it is one."""
    assert number not in cut("train", name, number)
    assert number not in cut("train", f"{name}={number}")


@given(st.lists(st.binary(max_size=60).map(lambda raw: raw.replace(b"\0", b"")), max_size=8))
@MANY
def test_any_command_is_one_printable_line(argv: list[bytes]) -> None:
    """Bytes of any kind give printable text of bounded length; nothing raises."""
    for whole in (True, False):
        shown = redact.command(argv, whole=whole)
        assert shown.isprintable() or not shown
        assert len(shown) <= 2048


@pytest.mark.parametrize(
    "argv",
    [
        ("torchrun", "--nnodes=64", "--nproc-per-node=8", "--rdzv-id=4711", "train.py"),
        ("python", "-u", "train.py", "--max_tokens=4096", "--tokenizer", "gpt2"),
        ("python", "train.py", "--model", "Qwen2-72B-Instruct", "--lr", "1e-4"),
        ("python", "train.py", "--data", "/mnt/data/CommonCrawl2024/shards_000123"),
        ("sleep", "inf", "GPU-5d0f2c5e-7c4f-5d7b-a5d0-9f1f6a8f4a0e"),
        ("torchrun", "--rdzv-endpoint=h1:29500", "-m", "train.main", "--config", "conf/a.yaml"),
        ("python", "/srv/train.py", "trainer.model=gpt2", "data.path=/mnt/x", "lr=0.1"),
        ("vllm", "serve", "--tensor-parallel-size", "8"),
        ("ssh", "-i", "/home/me/key.pem", "-p", "22"),
        ("python", "-u", "-m", "torch.distributed.run", "--nnodes", "2", "-m", "train.main"),
        ("accelerate", "launch", "--num-processes", "8", "-m", "train.main"),
        ("python", "train.py", "--standalone", "--lr=0.1", "optim.lr=0.1"),
    ],
)
def test_an_ordinary_command_stays_readable(argv: tuple[str, ...]) -> None:
    """What an operator needs in order to recognise a job is not cut."""
    assert cut(*argv) == " ".join(argv)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (("python3", "-u", "train.py", "--name", "x"), "python3 train.py"),
        (("python3", "-m", "torch.distributed.run", "x.py"), "python3 -m torch.distributed.run"),
        (("/usr/bin/python3.11", "-c", "print('x')"), "/usr/bin/python3.11"),
        (("bash", "-lc", "run secretly"), "bash"),
        (("nvidia-smi", "-q"), "nvidia-smi"),
        (("my title with words",), "my"),
        (("bash", "run.sh", "x"), "bash run.sh"),
        (("trainer --password hunter2", "--lr", "1"), "trainer"),
        (("trainer --password /a/python3", "x.py"), "trainer"),
        (("python3", "-m", "mod --password hunter2"), "python3 -m mod"),
        (("python3", "-", "c2VjcmV0="), "python3"),
        (("python", "-W", "hunter2.py", "t.py"), "python"),
        (("python", "hunter2=.py"), "python"),
        (("python", "hunter2"), "python"),
        (("bash", "-s", "hunter2=1"), "bash"),
        (("bash", "-m", "hunter2"), "bash"),
        (("bash", "-x", "/srv/run", "x"), "bash /srv/run"),
        (("sh", "-s", "--", "hunter2="), "sh"),
        (("perl", "-e", "hunter2="), "perl"),
        (("trainer,pw=hunter2",), "trainer"),
        (("/bin/login:hunter2",), "/bin/login"),
        (("(sd-pam)",), "***"),
    ],
)
def test_another_users_command_is_its_program(argv: tuple[str, ...], shown: str) -> None:
    """Of other users' processes the program and script are shown, and no argument."""
    assert cut(*argv, whole=False) == shown


@pytest.mark.parametrize(
    "argv",
    [
        ("--dataset", f"https://b/o?X-Amz-Signature={SECRET}&x=1"),
        ("--dataset", f"https://a.example/c?sv=2020&sig={SECRET}"),
        ("--dataset", f"mysql+pymysql://u@h/db?password={SECRET}"),
        ("--config", f'{{"password":"{SECRET}"}}'),
        ("--host", f"h user=u password={SECRET}"),
        ("--host", f"user:{SECRET}@h"),
        ("--auth.type", SECRET),
        (f"--password.host={SECRET}",),
        (f"--api-key.type={SECRET}",),
    ],
)
def test_a_harmless_option_with_a_secret_inside(argv: tuple[str, ...]) -> None:
    """Shown are plain words, paths and addresses, where no part of the option's name tells."""
    assert SECRET not in cut("python", "train.py", *argv)
    assert SECRET not in cut(f"python train.py {' '.join(argv)}")


def test_a_harmless_options_value_is_shown() -> None:
    """What says which job it is."""
    for value in (
        "meta-llama/Llama-3.1-8B",
        "s3://bucket/data",
        "cuda:0",
        "h1:29400",
        "conf/a.yaml",
    ):
        assert value in cut("python", "train.py", "--model", value)


_SECRETS = (
    "PW", "PWD", "PASS", "PASSWD", "PASSWORD", "PASSPHRASE", "TOKEN", "SECRET", "API_KEY", "APIKEY",
    "ACCESS_KEY", "ACCESSKEY", "PRIVATE_KEY", "KEY", "JWT", "AUTH", "BEARER", "PSK", "SAS", "OTP",
    "SIG", "CREDENTIALS", "COOKIE",
)  # fmt: skip
_SHAPES = ("ghp_", "github_pat_", "hf_", "sk-", "glpat-", "xoxb-", "nvapi-", "AKIA", "eyJ")


@pytest.mark.parametrize("word", _SECRETS)
def test_nodes_and_controller_know_a_secret_by_the_same_names(word: str) -> None:
    """As a variable's name, and behind such a word in another's value; what is read stays."""
    assert redact.SECRET_VARIABLE.pattern == HIDDEN_NAMES
    for name in (f"NCCL_{word}", f"TORCH_DB_{word}", f"UCX_{word.lower()}"):
        assert not public_variables({name: "hunter2"})
        assert redact.setting(name, "hunter2") == "***"
    behind = (f"{word}=hunter2", f"x_{word.lower()}: hunter2")
    for value in (*behind, "Bearer hunter2", "password hunter2", "a --token 'hunter2'"):
        assert "hunter2" not in str(public_variables({"NCCL_ALGO": value}))
        assert "hunter2" not in redact.setting("NCCL_ALGO", value)


@pytest.mark.parametrize("shape", _SHAPES)
def test_nodes_and_controller_know_a_token_by_its_form(shape: str) -> None:
    """Wherever in a value it stands."""
    token = f"{shape}0123456789abcdefghijABCDEFGHIJ012345"
    for value in (token, f"a,{token}", f"/opt/{token}"):
        assert token not in str(public_variables({"NCCL_ALGO": value}))
        assert token not in redact.setting("NCCL_ALGO", value)


def test_no_variable_that_a_check_reads_is_taken_for_a_secret() -> None:
    """Nor is a usual value of one."""
    assert len(variables()) > 100
    assert [name for name in variables() if redact.setting(name, "1") != "1"] == ["NCCL_PSK"]
    usual = ("mlx5_0:1,mlx5_1", "^docker0,lo", "/opt/sk-learn-env/lib:/usr/lib", "INIT,NET", "Ring")
    for value in usual:
        assert public_variables({"NCCL_IB_HCA": value}) == {"NCCL_IB_HCA": value}
