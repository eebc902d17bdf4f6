"""hosts.toml: roots, path rewrites and environments of each host."""
