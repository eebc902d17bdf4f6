"""Works a little, notes the time as its very last act, and ends as told: the command of most benchmark runs."""

import argparse
import json
import os
import resource
import signal
import time
from pathlib import Path


def main() -> None:
    """Write FACTS (what was received) at the start and STAMP (``time.time_ns()``) at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stamp", required=True)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--signal")
    parser.add_argument("--setpgrp", action="store_true")
    parser.add_argument("--daemon", action="store_true", help="leave a double-forked process behind")
    parser.add_argument("words", nargs="*")
    told = parser.parse_args()
    if told.setpgrp:
        os.setpgrp()
    if told.daemon:
        _leave_daemon()
    facts = {"words": told.words, "cwd": str(Path.cwd()), "value": os.environ.get("BENCH_VALUE")}
    Path(f"{told.stamp}.facts").write_text(json.dumps(facts))
    print(f"working for {told.seconds} s", flush=True)
    stamp = os.open(told.stamp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    time.sleep(told.seconds)
    os.write(stamp, str(time.time_ns()).encode())
    if told.signal:
        os.kill(os.getpid(), signal.Signals[told.signal])
    os._exit(told.exit)


def _leave_daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    os.wait()


if __name__ == "__main__":
    main()
