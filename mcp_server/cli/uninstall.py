"""`runward uninstall`: takes out what `runward install` put into a client."""

from __future__ import annotations

from mcp_server.cli.install import run

__all__ = ["run"]
