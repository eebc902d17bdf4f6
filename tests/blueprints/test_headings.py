"""Names of sections, in English and Chinese."""

import pytest

from mcp_server.blueprints.headings import find_section


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("[exp_launch_command]", "launch_command"),
        ("Exp Launch-Command", "launch_command"),
        ("EXP_LAUNCH_CMD", "launch_command"),
        ("启动命令", "launch_command"),
        ("实验目的", "purpose"),
        ("代码目录", "codebase_dir"),
        ("Python 解释器", "venv_exe"),
        ("配置文件", "yaml_path"),
        ("结果目录", "result_dir"),
        ("最长时间", "max_time"),
        ("lunch", None),
    ],
)
def test_a_section_has_many_names(name: str, section: str | None) -> None:
    assert find_section(name) == section
