"""Programs that are one file each: what nobody runs from is removed."""

import fcntl
import os
from pathlib import Path

from mcp_server.system.lock_files import hold_program_lock, remove_unused_files


def test_only_an_old_program_that_nobody_holds_is_removed(tmp_path: Path) -> None:
    used, old, held, new = (tmp_path / f"{name}.pyz" for name in ("used", "old", "held", "new"))
    for path in (used, old, held, new, tmp_path / "old.pyz.4711"):
        path.touch()
        os.utime(path, (1e9, 1e9))
    os.utime(new)
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        remove_unused_files(used, 60)
    assert {path.name for path in tmp_path.iterdir()} == {"used.pyz", "held.pyz", "new.pyz"}
    hold_program_lock(used)
    remove_unused_files(new, -1)
    assert {path.name for path in tmp_path.iterdir()} == {"used.pyz", "new.pyz"}
