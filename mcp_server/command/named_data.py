"""Data files and models that options name: ``data.val_files=./val.json``, ``--model_name_or_path /models/7b``. Pure.

A name such as ``org/model`` can be one of a hub, and a directory of data can be made by the program that uses it:
neither counts. Outputs have other names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import PurePath
from typing import Literal, NamedTuple

from mcp_server.command.shell import is_literal

_DATA_SUFFIXES = frozenset(
    """.json .jsonl .parquet .csv .tsv .arrow .npz .npy .h5 .hdf5 .lmdb .tfrecord .txt .zarr .pkl .feather
    .tar""".split()  # noqa: SIM905 - a list of words
)
# Programs open these relative to where they run.
_DATA_FILES = re.compile(r"(?:train|val|valid|validation|test)(?:_data)?_files?")
_GROUP_FILES = re.compile(r"eval(?:_data)?_files?")  # without a group it can be the result of an evaluation
_DATA_PATHS = re.compile(
    r"data|data_files?|dataset_files?|data_paths?|dataset_paths?|(?:train|val|valid|validation|test|eval)_(?:data|dataset)?_?paths?"
    r"|train_data|val_data|dataset"
)
_DATA_DIRECTORIES = re.compile(r"(?:data|dataset|datasets|train|val|image|images)_?(?:dir|root|folder|directory)")
_MODEL_SOURCES = re.compile(
    r"(?:pretrained_)?model_name_or_path|pretrained_(?:model_)?path|base_model(?:_path)?|tokenizer_(?:path|name_or_path)"
    r"|vla_path|pretrain"
)
# A training program may write its own model under these: in a group of Hydra, and in an evaluation, they are read.
_MODEL_PATHS = re.compile(r"model|model_path|(?:actor|critic|reward|ref|sft)_(?:model_)?path")
# What a program writes, by the words of an option and of its groups, and by the directories of a path.
_WRITES = frozenset(
    """output outputs out save saves saved saving store log logs logdir logging result results dump export exports
    write written work workdir dest destination upload""".split()  # noqa: SIM905 - as above
)
_OUTPUT_DIRECTORY = re.compile(r"(?:checkpoint|ckpt|run|exp|experiment|work|log|tensorboard|tb)s?_?(?:dir|root|folder)")
_OUTPUT_PLACES = frozenset(
    """output outputs out results saves saved save saved_models checkpoints ckpts runs logs work_dirs
    experiments exp exps artifacts""".split()  # noqa: SIM905 - as above
)
_CHECKPOINT_FILE = re.compile(r"\.(?:pt|pth|ckpt|bin|pkl|zip|th|safetensors|onnx|msgpack)")
_LIST = re.compile(r"\[(.*)\]", re.DOTALL)


class NamedData(NamedTuple):
    """A data file or a model.

    ``is_certain``: where it is missing, the program fails. ``may_be_output``: by its name alone the program may as
    well write it.
    """

    kind: Literal["data file", "data directory", "model"]
    path: str
    is_certain: bool
    may_be_output: bool = False


def names_an_output(option: str) -> bool:
    """Return whether an option, with its groups, says that the program writes what it names: ``save.model_path``."""
    parts = option.lstrip("-+").replace("-", "_").lower().split(".")
    return _OUTPUT_DIRECTORY.fullmatch(parts[-1]) is not None or any(
        not _WRITES.isdisjoint(part.split("_")) for part in parts
    )


def is_output_place(path: str) -> bool:
    """Return whether a path leads through a directory where programs write: ``/data/me/outputs/run1``."""
    return not _OUTPUT_PLACES.isdisjoint(part.lower() for part in PurePath(path).parts)


def split_options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options among ``words`` with their values: ``--config x``, ``--config=x``, ``a.config=x``."""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        option, equals, value = word.partition("=")
        if equals or option.startswith("--"):
            yield option, value if equals else following


def find_named_data(words: Sequence[str], *, evaluates: bool) -> Iterator[NamedData]:
    """Yield what the options among ``words`` name. ``evaluates``: the program reads a model rather than writes one."""
    for option, value in split_options(words):
        key = option.lstrip("-+").replace("-", "_").lower()
        for each in _split_list(value):
            if (named := _classify(key, each, evaluates=evaluates)) is not None:
                yield named


def _split_list(value: str) -> list[str]:
    match = _LIST.fullmatch(value)
    parts = match[1].split(",") if match else [value]
    paths = [part.strip().strip("'\"") for part in parts]
    return [path for path in paths if path and not path.startswith("-") and is_literal(path)]


def _classify(key: str, value: str, *, evaluates: bool) -> NamedData | None:
    group, _, name = key.rpartition(".")
    is_explicit = value.startswith(("/", "./", "../", "~/"))
    suffix = PurePath(value).suffix.lower()
    if names_an_output(key):
        return None
    if suffix in _DATA_SUFFIXES:
        if _DATA_FILES.fullmatch(name) or (group and _GROUP_FILES.fullmatch(name)):
            return NamedData("data file", value, True)
        if _DATA_PATHS.fullmatch(name):
            return NamedData("data file", value, value.startswith(("/", "~/")))
        return None
    if not is_explicit:
        return None
    if _DATA_DIRECTORIES.fullmatch(name) and value.startswith("/"):
        return NamedData("data directory", value, False)
    if _MODEL_SOURCES.fullmatch(name) or (name == "path" and group.rpartition(".")[2] == "model"):
        return NamedData("model", value, True)
    if not _MODEL_PATHS.fullmatch(name):
        return None
    if group or evaluates:
        return NamedData("model", value, True)
    is_read = value.startswith(("/", "~/")) and not _CHECKPOINT_FILE.fullmatch(suffix) and not is_output_place(value)
    return NamedData("model", value, True, may_be_output=True) if is_read else None
