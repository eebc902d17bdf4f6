"""The process that advances one sweep."""
