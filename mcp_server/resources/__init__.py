"""MCP resources and prompts: blueprints, guides and agent files."""
