"""How the GPUs of a run reach its command: placeholders in its words, and CUDA's variables. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mcp_server.text.regex import compile_lazily

# In a command, its parameters and its environment these are replaced by the UUIDs and the indices of the run's GPUs.
PLACEHOLDERS = ("{gpus}", "{gpu_indices}")
# The variables to which CUDA programs keep.
VISIBLE_DEVICES, DEVICE_ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"

# `${gpus}` is a variable of the shell.
_PLACEHOLDER = compile_lazily(r"(?<!\$)\{(?:gpus|gpu_indices)\}")
_INDICES = compile_lazily(r"(?<!\$)\{gpu_indices\}")
# These choose a GPU for rendering alone: the program still computes on the first that it sees.
_RENDERS = compile_lazily(r"EGL|RENDER|VK_|VULKAN|GLX")


def find_placeholder(text: str) -> str | None:
    """Return the first placeholder in ``text``, or None where it has none."""
    match = _PLACEHOLDER.search(text)
    return match[0] if match else None


def chooses_itself(
    command: str | Sequence[str], env: Mapping[str, str], params: Mapping[str, object], resume_args: Sequence[str]
) -> bool:
    """Return whether the program chooses its GPUs by the indices in its words, as in ``--device cuda:{gpu_indices}``.

    Where it sees only its own GPUs, ``cuda:2`` would be none of them, so nothing is pinned then. A variable that only
    selects the GPU for rendering does not count.
    """
    variables = (value for name, value in env.items() if not _RENDERS.search(name))
    words = [*_words(command), *variables, *map(str, params.values()), *resume_args]
    return any(_INDICES.search(word) for word in words)


def _words(command: str | Sequence[str]) -> Iterator[str]:
    if isinstance(command, str):
        yield command
    else:
        yield from command
