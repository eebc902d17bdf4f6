"""What the driver's Xid errors mean: https://docs.nvidia.com/deploy/xid-errors. Pure."""

# The program's own doing, as a rule: they say nothing of the GPU.
BY_PROGRAM = frozenset({13, 31, 43, 45})
# The memory mends itself: worth knowing, and nothing to be done.
MENDED = frozenset({63, 92})

MEANINGS = {
    8: "a channel timed out",
    13: "exception in a kernel, such as an illegal address or instruction",
    31: "invalid memory access (MMU fault)",
    32: "corrupted commands from the host",
    43: "a process's work was stopped",
    45: "what a killed or failed process left was cleaned up",
    48: "double-bit ECC error",
    61: "breakpoint of the power controller",
    62: "the power controller halted",
    63: "memory row remapped or page retired",
    64: "memory row could not be remapped or page not retired",
    69: "the compute engine refused commands",
    74: "NVLink error",
    79: "fallen off the bus",
    92: "many single-bit ECC errors",
    94: "ECC error, contained in one process",
    95: "ECC error, not contained",
    109: "switching between processes timed out",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    121: "error of the link to the CPU",
    140: "ECC error that was not corrected",
    143: "the GPU could not be initialised",
    154: "the GPU needs a reset or a reboot",
}


def meaning(number: int) -> str:
    """Return what an Xid means, in a few words."""
    return MEANINGS.get(number, "NVIDIA's list of Xid errors explains it")
