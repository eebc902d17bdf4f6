"""MCP tools: one module per tool."""
