"""The model of a GPU report, importable without what makes one."""

from mcp_server.answer import Answer


class GpuReport(Answer):
    """Whether all is well and why not, then the free GPUs, then one line a GPU. ``header``: their common values."""

    ok: bool
    reasons: list[str]
    free: list[str]
    header: str | None = None
    driver: str | None = None
    gpus: list[str]
