"""A user's configuration checked by VERL's own: sections, keys, the GPUs it counts on."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mcp_server.sweeps.sources.cell import GpuCount, Scalar
from mcp_server.system.files import read_regular_file
from mcp_server.system.python_modules import Installation, find_installation

SECTIONS = ("data", "actor_rollout_ref", "algorithm", "trainer")  # of PPO, GRPO and their like
# Configs of the package that its programs start from: what they define needs no list of defaults.
PRIMARY = frozenset({"ppo_trainer", "ppo_megatron_trainer", "ppo_torchtitan_trainer", "ppo_veomni_trainer"})
_PACKAGED = "trainer/config/_generated_ppo*_trainer.yaml"  # VERL's release writes each primary config out in full
_MOST_BYTES = 1_000_000
_MOST_NOTES = 8


def find_packaged_keys(python: str, environ: Mapping[str, str], cwd: Path) -> frozenset[str] | str:
    """Return all keys, sections among them, of the configs that VERL is installed with, or why they are not known.

    Nothing of VERL is executed.
    """
    try:
        installation = find_installation(python, environ, cwd)
    except OSError as error:
        return f"{python} cannot be read ({error.strerror})"
    if not isinstance(installation, Installation):
        return f"{installation.text}".rstrip(".")
    directories = [*installation.directories, *_list_sources(installation, environ, cwd)]
    files = [file for directory in directories for file in sorted((directory / "verl").glob(_PACKAGED))]
    if not files:
        return f"{python} has no verl with a config written out in full"
    keys: set[str] = set()
    for file in files:
        try:
            config = yaml.safe_load(read_regular_file(file, max_bytes=_MOST_BYTES))
        except (OSError, yaml.YAMLError) as error:
            return f"{file} cannot be read ({type(error).__name__})"
        keys.update(_list_keys(config if isinstance(config, dict) else {}, ""))
    return frozenset(keys)


def find_unknown_keys(names: Sequence[str], keys: frozenset[str]) -> list[str]:
    """Return a sentence for each override that Hydra would refuse, because VERL has no such key."""
    unknown = [name for name in names if name[0] not in "+~" and name not in keys and not name.startswith("hydra.")]
    notes = []
    for name in unknown[:_MOST_NOTES]:
        near = difflib.get_close_matches(name, keys, 1, 0.8)
        hint = f"did you mean {near[0]}?" if near else f"a new key is written +{name}."
        notes.append(f"VERL has no key {name}, so Hydra refuses it: {hint}")
    if len(unknown) > _MOST_NOTES:
        notes.append(f"{len(unknown) - _MOST_NOTES} more keys are unknown to VERL.")
    return notes


def check_gpu_count(params: Mapping[str, Scalar], gpus: GpuCount) -> list[str]:
    """Return a sentence where the config counts on other GPUs than a cell has."""
    per_node, nodes = params.get("trainer.n_gpus_per_node"), params.get("trainer.nnodes", 1)
    if (
        not isinstance(gpus, int)
        or not isinstance(per_node, int)
        or not isinstance(nodes, int)
        or per_node * nodes == gpus
    ):
        return []
    return [f"trainer.n_gpus_per_node times trainer.nnodes is {per_node * nodes}, and a cell has gpus={gpus}."]


def _list_sources(installation: Installation, environ: Mapping[str, str], cwd: Path) -> Iterator[Path]:
    """Yield directories that can hold a package from its sources: editable, on PYTHONPATH, in the project."""
    if (place := installation.editable.get("verl")) is not None:
        yield place.parent
    yield from (cwd / entry for entry in environ.get("PYTHONPATH", "").split(":") if entry)
    yield cwd


def _list_keys(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in table.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _list_keys(value, f"{prefix}{key}.")
