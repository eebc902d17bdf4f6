"""A pane that is gone is told to whoever reads its keys, however it was noticed."""

import os
import pty

from mcp_server.supervisor.terminal.pty import Pane


def test_the_end_of_a_pane_that_output_met_first_is_read() -> None:
    master, slave = pty.openpty()
    pane = Pane(slave)
    os.close(slave)
    os.write(master, b"\x03")
    assert pane.read_keys() == b"\x03"
    pane.write(b"step 1\n")
    os.close(master)
    pane.write(b"step 2\n")
    assert (pane.is_open, pane.has_backlog) == (True, False)
    assert pane.read_keys() is None
    pane.close()
