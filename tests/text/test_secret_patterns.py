"""What looks like a secret is masked, and settings stay as they are."""

import pytest

from mcp_server.text.secret_patterns import MASKED, mask_secrets


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


def test_known_values_are_masked_by_name_in_any_spelling() -> None:
    assert mask_secrets("at hunter2%2Dhunter2 or hunter2-hunter2", {"WANDB_API_KEY": "hunter2-hunter2"}).endswith(
        "or [secret:WANDB_API_KEY]"
    )
    assert mask_secrets("a b c", {"SHORT": "a"}) == "a b c"


@pytest.mark.parametrize("text", ["a_", "key=1", "api_key=", "1234567890", "eyJaaaaaaaaaaaa-", "://a:", "token:1"])
def test_a_megabyte_of_anything_is_masked_in_one_go(text: str) -> None:
    assert mask_secrets(text * (1_000_000 // len(text)))
