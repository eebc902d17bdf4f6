"""The page of a server: runs, sweeps and machines, live in a browser, under the same rules as /mcp."""
