"""The facts that are read from a git work tree."""

from mcp_server.system.git_state import quote_git_failure


def test_the_cause_of_a_failure_is_quoted_and_not_the_hint_behind_it() -> None:
    boundary = (
        "fatal: not a git repository (or any parent up to mount point /tmp)\n"
        "Stopping at filesystem boundary (GIT_DISCOVERY_ACROSS_FILESYSTEM not set).\n"
    )
    assert quote_git_failure(boundary) == "not a git repository (or any parent up to mount point /tmp)"
    assert quote_git_failure("hint: one\nerror: object 1f is corrupt\nhint: two\n") == "error: object 1f is corrupt"
    assert quote_git_failure("killed\n") == "killed"
    assert quote_git_failure("") == "git failed"
