"""Prints a line a second, as a training does."""

import itertools
import sys
import time

for step in itertools.count(1):
    print(f"step {step:>6} loss {2.5 / step**0.5:.4f} lr 3.0e-05 grad_norm 0.98 tok/s 51234", flush=True)
    if step > float(sys.argv[1]):
        break
    time.sleep(1)
