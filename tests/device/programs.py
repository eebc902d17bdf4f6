"""Training programs and faults on one real GPU, by name: `python programs.py NAME [--batch N] [--steps N] …`.

`hold` needs no GPU: in a trial with the fake driver it stands for a program that has GPU memory.
"""

# mypy: disable-error-code="import-not-found,import-untyped"
# ruff: noqa: PLC0415 - each program imports its own framework
from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def hold(told: argparse.Namespace) -> None:
    """Live until a file exists, and end by no polite signal when deaf."""
    if told.deaf:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    kept = None
    if told.mib:
        import torch

        kept = torch.empty(told.mib * 2**20, dtype=torch.uint8, device="cuda").fill_(1)
        torch.cuda.synchronize()
    print(f"step 1/2 pid {os.getpid()}", flush=True)
    while not told.until or not Path(told.until).exists():
        time.sleep(0.05)
    del kept


def train(told: argparse.Namespace) -> None:
    """Train a small network; print the steps a second and PyTorch's own figures of memory at the end."""
    import torch

    model: Any = torch.nn.Sequential(
        torch.nn.Linear(told.width, told.width), torch.nn.GELU(), torch.nn.Linear(told.width, told.width)
    ).cuda()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)
    begun_s = time.perf_counter()
    for step in range(1, told.steps + 1):
        if step == told.steps // 10 + 1:  # kernels are chosen and loaded by now
            torch.cuda.synchronize()
            begun_s = time.perf_counter()
        rows = torch.randn(told.batch, told.width, device="cuda")
        loss = (model(rows) - rows).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % told.every == 0:
            print(f"step {step}/{told.steps} loss {loss.item():.5f}", flush=True)
    torch.cuda.synchronize()
    counted = told.steps - told.steps // 10
    print(f"steps_a_second={counted / (time.perf_counter() - begun_s):.3f}")
    print(f"reserved_mib={torch.cuda.max_memory_reserved() / 2**20:.0f}", flush=True)
    if told.until:
        while not Path(told.until).exists():
            time.sleep(0.05)


def out_of_memory(told: argparse.Namespace) -> None:
    """Take a tenth of the GPU's memory for each item of the batch: sixteen are too many, eight fit."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    kept = []
    for item in range(told.batch):
        kept.append(torch.empty(total // 10, dtype=torch.uint8, device="cuda").fill_(1))
        print(f"step {item + 1}/{told.batch}", flush=True)


def device_assert(_: argparse.Namespace) -> None:
    """Look up an index that an embedding does not have."""
    import torch

    table = torch.nn.Embedding(10, 4).cuda()
    table(torch.tensor([12], device="cuda"))
    torch.cuda.synchronize()


def illegal_address(_: argparse.Namespace) -> None:
    """Write far outside of an allocation, with a kernel of Triton."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def write(out):  # type: ignore[no-untyped-def] # Triton compiles annotations too, and knows no global names
        tl.store(out + (1 << 40), 1.0)

    write[(1,)](torch.zeros(8, device="cuda"))
    torch.cuda.synchronize()


def invalid_ordinal(_: argparse.Namespace) -> None:
    """Use a GPU that the machine does not have."""
    import torch

    torch.zeros(1, device="cuda:7")


def cublas(_: argparse.Namespace) -> None:
    """Let cuBLAS make its handle where PyTorch holds all memory."""
    import torch

    kept = []
    size = 2**30
    while size >= 2**16:
        try:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    torch.cuda.current_stream().synchronize()
    handle = torch.cuda.current_blas_handle()
    print(f"cuBLAS made a handle all the same: {handle}", flush=True)


def nccl(_: argparse.Namespace) -> None:
    """Start two ranks on one GPU, which NCCL refuses."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    dist.all_reduce(torch.ones(1, device="cuda:0"))
    torch.cuda.synchronize()


def jax_takes_all(told: argparse.Namespace) -> None:
    """Let JAX take its three quarters of the memory at once, as it does by default."""
    import jax

    total = jax.numpy.ones((1024, 1024)).sum().item()
    print(f"step 1/1 sum {total}", flush=True)
    while told.until and not Path(told.until).exists():
        time.sleep(0.05)


def jax_second(_: argparse.Namespace) -> None:
    """Ask JAX for more than any GPU has."""
    import jax

    jax.numpy.ones((1 << 20, 1 << 20), dtype="float32").block_until_ready()


PROGRAMS: dict[str, Callable[[argparse.Namespace], None]] = {
    each.__name__: each
    for each in (
        *(hold, train, out_of_memory, device_assert, illegal_address, invalid_ordinal, cublas, nccl),
        *(jax_takes_all, jax_second),
    )
}


def main() -> int:
    """Run the named program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(PROGRAMS))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--mib", type=int, default=0)
    parser.add_argument("--cell", type=int, default=0)
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--until", default="", help="a file; the program ends once it exists")
    told = parser.parse_args()
    PROGRAMS[told.name](told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
