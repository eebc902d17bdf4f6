"""A training of the agents' questions: settings decide its loss; ``--fail`` says how it ends. Standard library only."""

import argparse
import importlib
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

_UPDATES = 10


class OutOfMemoryError(RuntimeError):
    """As PyTorch names it."""

    __module__ = "torch"


parser = argparse.ArgumentParser()
for flag, kind, default in (("lr", float, 1e-3), ("seed", int, 0), ("batch", int, 64), ("steps", int, 20)):
    parser.add_argument(f"--{flag}", type=kind, default=default)
parser.add_argument("--pace", type=float, default=0.01)
parser.add_argument("--fail", default="")
arguments = parser.parse_args()
random.seed(arguments.seed)
print("loading data … 50,000 samples", flush=True)
best = abs(math.log10(arguments.lr) + 3.0)  # of the learning rate 1e-3
child = (
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) if arguments.fail == "leak" else None
)
for step in range(1, arguments.steps + 1):
    for update in range(_UPDATES):  # a bar in the form of tqdm's, as it stands in a log file
        time.sleep(arguments.pace / _UPDATES)
        done = (step - 1 + update / _UPDATES) / arguments.steps
        bar = "█" * int(10 * done)
        print(
            f"\r{done:4.0%}|{bar:<10}| {step}/{arguments.steps} [00:01<00:02, 18.07it/s]",
            end="",
            file=sys.stderr,
            flush=True,
        )
    print(file=sys.stderr, flush=True)
    loss = 2.0 * math.exp(-step / 6) + 0.4 + 0.3 * best + 0.01 * random.random()
    if arguments.fail == "nan" and step > 10:
        loss = math.nan
    print(f"step {step}/{arguments.steps} loss {loss:.4f} lr {arguments.lr:g}", flush=True)
    if step == 8:
        if arguments.fail == "oom" and arguments.batch > 32:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.6 GiB total)")
        if arguments.fail == "data":
            Path("shards/train-00042.tar").read_bytes()
        if arguments.fail == "import":
            importlib.import_module("flash_attn_3")
        if arguments.fail == "shape":
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (64x512 and 768x512)")
        if arguments.fail == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if arguments.fail == "quiet":
            sys.exit(3)
        if arguments.fail == "hang":
            time.sleep(600)
print(f"saved checkpoint ckpt/lr{arguments.lr:g}-seed{arguments.seed}.pt")
print(f"final loss {loss:.4f}", flush=True)
