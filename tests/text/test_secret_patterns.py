"""What looks like a secret is masked, and settings stay as they are."""

import random
import re
from pathlib import Path

import pytest

from mcp_server.command.shell import parse
from mcp_server.text.rows import read_blocks
from mcp_server.text.secret_patterns import MASKED, find_keys, has_service_token, mask_secrets, mask_source
from tests.support.provider_keys import FORMATS, make_key
from tests.support.rows import for_each
from tests.support.secret_shapes import SHAPES

LOGS = sorted(path for path in (Path(__file__).parents[1] / "data").rglob("*") if path.suffix in (".log", ".txt"))


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 512",
        "num_tokens=1000000",
        "eos_token: <|endoftext|>",
        "sort_key: created_at_by_time",
        "key = lambda x: x",
        "password = get_password()",
        "secret = os.environ['SECRET']",
        "api_key: null",
        "obs_key: observation.images.cam0",
        f"commit {'0123456789' * 4}",
    ],
)
def test_settings_are_not_taken_for_secrets(text: str) -> None:
    assert mask_secrets(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "WANDB_API_KEY=abc123def",
        '  api_key: "zzzzzzzz"',
        "--hf_token abcdefgh",
        "token: 0123456789abcdef0123",
        "hf_abcdefghijklmnopqrstuv",
        "http://bob:pass1@proxy:80",
        "Authorization: Bearer abcdefghijklmnop",
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
        "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPx",
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str) -> None:
    assert MASKED in mask_secrets(text)
    assert not any(part in mask_secrets(text) for part in ("abc", "zzzz", "0123", "pass1", "wJal"))


@for_each(SHAPES.values())
def test_usual_shapes_of_secrets_are_masked(text: str, secret: str) -> None:
    masked = mask_secrets(f"loss 0.5\n{text}\nloss 0.4")
    assert secret not in masked
    assert MASKED in masked
    assert masked.startswith("loss 0.5\n")
    assert masked.endswith("\nloss 0.4")


def test_no_log_of_a_training_run_holds_what_looks_like_a_secret() -> None:
    assert len(LOGS) > 50
    for path in LOGS:
        text = path.read_text(errors="replace")
        assert mask_secrets(text) == text, path


@pytest.mark.parametrize(
    "text",
    [
        "pass: 12.5ms fwd_pass=0.0123456 backward pass: 100 it",
        "first pass: epoch3step20 loss 0.5",
        "pwd: /home/bob/runs/2024-12-01",
        "docker run -u 1000:1000 --user 1000:1000 image",
        "docker run --user $(id -u):$(id -g) image",
        "rsync -u host:/data/x /y",
        "python -u train.py pkg:func",
        "wandb: Syncing run crisp-cloud-12",
        "wandb: 🚀 View run at https://wandb.ai/me/p/runs/9f8e7d6c",
        "wandb: Tracking run with wandb version 0.16.1",
        "wandb: Currently logged in as: someone123456789abcdef0123",
        "HEAD is now at 9f8e7d6c5b4a39281706f5e4d3c2b1a098765432",
        "login node: gpu-login-01 login successful at 2024-12-01T12:34:56",
        "sha256:9f8e7d6c5b4a39281706f5e4d3c2b1a0987654329f8e7d6c5b4a392817061122",
        "api_key:\n  other_setting: 5",
        "password:\nusername: bob",
        "tokens: 123456789 tokens/s: 98765.4 key: value",
        "credentials: loaded from /home/bob/.netrc",
        "step 10 pass@1: 0.123456 pass@10=0.4567890",
        "mysql -u root db",
        "loss=0.123456&acc=0.987654321",
    ],
)
def test_ordinary_output_is_not_taken_for_secrets(text: str) -> None:
    assert mask_secrets(text) == text


def test_known_values_are_masked_by_name_in_any_spelling() -> None:
    assert mask_secrets("at hunter2%2Dhunter2 or hunter2-hunter2", {"WANDB_API_KEY": "hunter2-hunter2"}).endswith(
        "or [secret:WANDB_API_KEY]"
    )
    assert mask_secrets("a b c", {"SHORT": "a"}) == "a b c"


@pytest.mark.parametrize(
    "text",
    [
        "a_",
        "key=1",
        "api_key=",
        "1234567890",
        "eyJaaaaaaaaaaaa-",
        "://a:",
        "token:1",
        "curl ",
        "login ",
        "login -a ",
        "mysql ",
        "sshpass -p",
        "api key ",
        "pass:",
        "wandb: ",
        "Authorization: ",
        "Cookie: ",
        "SG.",
        "?sig=",
        " \\\n",
        "login('",
        "api_key:\n ",
        "password\n",
        'token = "a1',
        "token: a =",
        "token,default=",
        "a token=a1b2c3d4 ",
    ],
)
def test_much_of_anything_is_masked_in_one_go(text: str) -> None:
    assert mask_source(text * (100_000 // len(text)))  # a minute where the time is not linear


HEX = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (f"export WANDB_API_KEY={HEX} && python train.py", "WANDB_API_KEY"),
        (f'export WANDB_API_KEY="{HEX}"', "WANDB_API_KEY"),
        (f"python train.py --wandb_key {HEX}", "wandb_key"),
        (f"python train.py --wandb_key={HEX}", "wandb_key"),
        ("python train.py --wandb_key abc123", "wandb_key"),
        (f"python train.py logger.wandb.key={HEX}", "logger.wandb.key"),
        (f"python train.py --key '{HEX}'", "key"),
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuv python a.py", "HF_TOKEN"),
        ("python a.py note=hf_abcdefghijklmnopqrstuv", "note"),
        (f"wandb login {HEX}", "login"),
        (f"wandb login --relogin {HEX}", "login"),
        ("git clone https://oauth2:abcdef123456@example.org/a/b", ""),
        ("python a.py --password hunter22", "password"),
        ("curl -H 'Authorization: Bearer abcdef1234567890' x", ""),
        ("OPENAI_API_KEY=abcdefgh python a.py", "OPENAI_API_KEY"),
    ],
)
def test_a_key_in_a_command_is_found_with_its_name(command: str, name: str) -> None:
    assert list(find_keys(parse(command).words)) == [name]


@pytest.mark.parametrize(
    "command",
    [
        "python a.py data.prompt_key=question_text_column data.reward_fn_key=data_source",
        "vllm serve m --api-key EMPTY",
        "OPENAI_API_KEY=EMPTY python a.py",
        "export WANDB_API_KEY=$WANDB_API_KEY",
        'python a.py --wandb_key "$WANDB_API_KEY" --passphrase ${X}',
        "python a.py --max_new_tokens 10000000 max_tokens=40960000 data.image_key=observation_image_2024",
        f"git checkout {HEX}",
        f"python a.py --revision {HEX}",
        "python a.py --tokenizer_key /data/models/qwen25instruct1234567",
        "https_proxy=http://u:pw123456@proxy:3128 python a.py",
        "python a.py --token_type bert --eos_token '<|im_end|>' --sort_key timestamp20240101",
        "python a.py --api_key_file /home/a/key.txt --api_key YOUR_API_KEY --auth none",
        "python a.py run=2024-01-01_12-30-00_abcdef1234567890 key=val",
        "git clone https://oauth2:$TOKEN@example.org/a/b",
    ],
)
def test_ordinary_words_of_a_command_are_not_keys(command: str) -> None:
    assert list(find_keys(parse(command).words)) == []


LITERAL = "abcdef123456"
ASSIGNED = [
    "+token = 'abcdef123456'",
    '-token = "abcdef123456"',
    "+    token: str = 'abcdef123456'",
    "+  token: abcdef123456",
    '+  "token": "abcdef123456",',
    "+TOKEN=abcdef123456",
    "+export GITEA_TOKEN=abcdef123456",
    '+token = "abcdef123456"  # mine',
    '+api_key: str = "abcdef123456"',
    '+slack_token = r"abcdef123456"',
    '+hub_token="abcdef123456", private=True)',
    '+    cfg["token"] = "abcdef123456"',
    '+os.environ["MY_TOKEN"] = "abcdef123456"',
    '+os.environ.setdefault("MY_TOKEN", "abcdef123456")',
    '+token = os.environ.get("T") or "abcdef123456"',
    '+token = (\n+    "abcdef123456"\n+)',
    '+p.add_argument("--token", type=str, default="abcdef123456")',
    '+token = SecretStr("abcdef123456")',
    '+password: "correct abcdef123456"',
    '+secret = "abcdef123456"',
    '+key = "abcdef123456"',
    "+wandb_key: abcdef123456",
    '+token = """abcdef123456"""',
    '+auth = "abcdef123456"',
    '+token := "abcdef123456"',
    '+tokens = "abcdef123456"',
    "+pwd = 'abcdef123456'",
    '+ token2 = "abcdef123456"',
    "+token = abcdef123456",
    '+{\\"token\\": \\"abcdef123456\\"}',
    '+MYTOKEN="abcdef123456"',
    '+login(token="abcdef123456")',
    '+authToken: "abcdef123456"',
    "+dbPassword = 'abcdef123456'",
    "+token: abcdef123456  # x",
    '+token = b"abcdef123456"',
    '+token = "abcdef123456" if x else None',
    "+ - token: abcdef123456",
    '+token => "abcdef123456"',
]
ORDINARY_ASSIGNMENTS = """
token = tokenizer.encode(x)
max_tokens = 4096
num_tokens: 512
pad_token = "<pad>"
eos_token="</s>"
token = tokens[0]
token = batch2.token_ids
token: str
token: Optional[str] = None
token = os.environ["HF_TOKEN_1234"]
token = os.environ.get("HF_TOKEN_2")
token=token, key=key)
image_token = "IMG_CONTEXT2"
bos_token: "bos_token_1"
mask_token = "[MASK]"
token = "<|reserved_special_token_12|>"
sort_key: val_top1_acc
prompt_key: question_text2
key = "layer_12.weight"
key = f"layers.{i}.weight1"
key = 'train/loss_v2'
image_key = "observation2024"
for key in keys12345678:
tokens = ids2tokens
tokens = [1, 2, 3]
n_tokens = 12345678
tokens: 12345678
token_type: "bert2base12"
max_new_tokens: "12345678"
token = "yes"
token = "${HF_TOKEN2024}"
token: ${oc.env:HF_TOKEN2}
token = next(stream1234)
api_key = os.environ["API_KEY2"]
password = getpass.getpass()
token = "your-token-1234"
special_tokens = "sp12345678"
primary_key: int = 12345678
token_path = "/home/a1/token.txt"
pass
tokenizer = "llama3-8b-instruct"
author = "abcdef123456"
path = "abcdef123456"
revision: abcdef123456
num_key_value_heads: 12345678
auth: none
monkey = "abcdef123456"
compat = "abcdef123456"
tokens_per_batch = "12k34567"
""".strip().splitlines()


@for_each(ASSIGNED)
def test_a_literal_that_source_assigns_to_the_name_of_a_secret_is_masked(line: str) -> None:
    masked = mask_source(line)
    assert MASKED in masked
    assert LITERAL not in masked


@for_each([*ORDINARY_ASSIGNMENTS, *(f"-    {line}\n+    {line}\n" for line in ORDINARY_ASSIGNMENTS)])
def test_ordinary_assignments_of_source_stay_as_they_are(text: str) -> None:
    assert mask_source(text) == text


def test_each_shape_masks_the_line_in_which_it_was_seen_and_not_without_it() -> None:
    blocks = [dict(block) for block in read_blocks("text/secrets")]
    assert len(blocks) >= 30
    for block in blocks:
        masked = mask_secrets(block["seen"])
        assert "[masked]" in masked, block
        if "begin" in block:
            assert has_service_token(block["seen"])
            found = re.search(block["begin"] + block["rest"], block["seen"])
        else:
            found = re.search(block["line"], block["seen"])
            assert any(word in block["seen"].lower() for word in block["has"].split("|"))
        assert found, block
        secret = found["value"] if "line" in block else found[0]
        assert secret not in masked, block


@for_each(sorted(FORMATS))
def test_a_key_of_a_provider_is_masked_under_no_name_at_all(name: str) -> None:
    dice = random.Random(name)
    for _ in range(5):
        key, secret = make_key(name, dice)
        for text in (key, f"using {key} now", f"error 401: {key}.", f'x = "{key}"', f"['{key}', 1]"):
            assert secret[4:-4] not in mask_secrets(text), text
