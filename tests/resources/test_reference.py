"""The tables of guide://reference are those that the program gives."""

from tests.support.reference_tables import GUIDE, insert


def test_the_reference_is_what_the_program_says() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert text == insert(text), "make it again: .venv/bin/python -m tests.support.reference_tables"


def test_the_reference_has_ranges_defaults_flags_and_the_rule_of_names() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for row in (
        "| `gpu_sample_s` | number >= 0.1, <= 600 | `5` |",
        "| `repair_grace_s` | number >= 0, <= 86400 | `0` |",
        '| `kill_policy` | `"confirm"`, `"human"` | `confirm` |',
        "| `smooth` | number >= 0, < 1 | `0.6` | EMA weight |",
        "1 to 64 characters",
        "`--exit-code N`: the exit code, if known",
    ):
        assert row in text, row
