"""Reads the evaluations.npz of stable-baselines3's EvalCallback: the rewards of all episodes of each evaluation."""

import zipfile
from pathlib import Path

import numpy as np

from mcp_server.system.files import open_regular

_MOST_BYTES = 16_000_000  # unpacked


def read_evaluation_arrays(path: Path) -> list[dict[str, float | int]]:
    """Return a row per evaluation. Raises OSError, or ValueError for damage, size or pickled objects."""
    try:
        with open_regular(path, follow_links=False) as file:
            with zipfile.ZipFile(file) as archive:
                if sum(member.file_size for member in archive.infolist()) > _MOST_BYTES:
                    raise ValueError(f"larger than {_MOST_BYTES:,} bytes")
            file.seek(0)
            arrays = np.load(file, allow_pickle=False)
            steps, results = arrays["timesteps"], arrays["results"]
            lengths, successes = arrays.get("ep_lengths"), arrays.get("successes")
    except (KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"not evaluations of stable-baselines3: {error}") from error
    if results.ndim != 2 or len(steps) != len(results):  # noqa: PLR2004 - evaluations, episodes
        raise ValueError("its results are not a table of evaluations and episodes")
    rows = []
    for number, rewards in enumerate(results.astype(float)):
        row = {"step": int(steps[number]), "mean_reward": float(rewards.mean()), "std_reward": float(rewards.std())}
        if successes is not None and len(successes) == len(steps):
            row["success_rate"] = float(successes[number].mean())
        if lengths is not None and len(lengths) == len(steps):
            row["mean_ep_length"] = float(lengths[number].mean())
        rows.append({**row, "episodes": int(rewards.size)})
    return rows
