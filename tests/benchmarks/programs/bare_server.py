"""The least that an MCP server can be: what the SDK itself costs."""

from mcp.server import MCPServer

server: MCPServer[None] = MCPServer("bare", log_level="WARNING")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    server.run()
