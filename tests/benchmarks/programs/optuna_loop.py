"""The peer of a sweep: Optuna's own loop with a study in a journal, one thread a GPU, each trial a process.

DIRECTORY SECONDS CELLS GPUS. Prints, as JSON, the seconds from each end of a trial to the next start on its GPU, and
the memory of this process in MiB and the processor time of its loop in seconds.
"""

import json
import os
import queue
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

directory, seconds, cells, gpus = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
optuna.logging.set_verbosity(optuna.logging.ERROR)
free: queue.SimpleQueue[int] = queue.SimpleQueue()
for number in range(gpus):
    free.put(number)
ended_s: dict[int, float] = {}
gaps_s: dict[int, list[float]] = defaultdict(list)


def run(trial: optuna.Trial) -> float:
    """Run one cell on the GPU that is free."""
    trial.suggest_int("n", 0, cells)
    gpu = free.get()
    if gpu in ended_s:
        gaps_s[gpu].append(time.time() - ended_s[gpu])
    environment = {**os.environ, "RUNWARD_GPU_INDICES": str(gpu), "RUNWARD_RUN_ID": str(trial.number)}
    argv = ["bash", str(Path(__file__).with_name("cell.sh")), str(directory), seconds]
    subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=True)
    ended_s[gpu] = time.time()
    free.put(gpu)
    return 0.5


began_s = time.process_time()
storage = JournalStorage(JournalFileBackend(str(directory / "journal.log")))
optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler(seed=1)).optimize(
    run, n_trials=cells, n_jobs=gpus
)
cpu_s = time.process_time() - began_s
memory = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
print(
    json.dumps(
        {
            "gaps_s": [gap for each in gaps_s.values() for gap in each],
            "mib": int(memory.split()[1]) / 1024,
            "cpu_s": cpu_s,
        }
    )
)
