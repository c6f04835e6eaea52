"""Inputs of a Keras model, and the lookups that turn their words into numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proplace.core import limits
from proplace.core.errors import ModelFileError, ModelNotSupportedError
from proplace.loaders._keras_settings import FLOATS, Settings, unwrapped

if TYPE_CHECKING:
    from proplace.loaders._keras_file import FileLayer

WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
_DTYPES = (*FLOATS, *WHOLE, "string")
_MODES = ("int", "one_hot", "multi_hot", "count")


@dataclass(frozen=True)
class Port:
    """One input of a model: its name, the shape of a row, and the type of its cells."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def width(self) -> int:
        """Number of cells of a row."""
        return math.prod(self.shape)

    @classmethod
    def of(cls, layer: FileLayer) -> Port:
        """Read the input that a layer describes."""
        settings = Settings(layer.where, layer.settings)
        shape = unwrapped(settings.raw("batch_shape"))
        if layer.kind != "InputLayer" or not isinstance(shape, list) or not shape:
            raise ModelFileError(f"{layer.where} does not say the shape of its rows")
        sizes = shape[1:]
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise ModelNotSupportedError(
                f"{layer.where} has the shape {str(shape)[:200]}; sizes must be set"
            )
        if math.prod(sizes) > limits.TABLE_COLUMNS:
            raise ModelFileError(
                f"{layer.where} takes {str(sizes)[:200]} numbers a row; at most "
                f"{limits.TABLE_COLUMNS:,} columns are read"
            )
        if settings.raw("dtype") == "bool":
            raise ModelNotSupportedError(
                f"{layer.where} takes truth values; declare it with dtype='float32', of 0 and 1"
            )
        dtype = settings.choice("dtype", _DTYPES, "float32")
        for key in ("ragged", "optional", "sparse"):
            settings.flag(key, False)
        settings.check_rest()
        return cls(layer.name, tuple(sizes), dtype)


@dataclass(frozen=True)
class Lookup:
    """What a StringLookup or IntegerLookup does to the words that it knows.

    Attributes
    ----------
    labels
        The words, without those that stand for unknown and for missing ones.
    start
        Number of the first of them.
    depth
        Length of a row of 0/1 columns.
    mode
        ``int`` for the number of the word, else how it is written in 0/1 columns.
    """

    labels: tuple[str | int, ...]
    start: int
    depth: int
    mode: str

    @property
    def codes(self) -> tuple[int, ...]:
        """Number of each word."""
        return tuple(range(self.start, self.start + len(self.labels)))

    @classmethod
    def of(cls, layer: FileLayer) -> Lookup:
        """Read a lookup; nothing about it is left to be found out by running it."""
        settings = Settings(layer.where, layer.settings)
        mode = settings.choice("output_mode", _MODES, "int")
        if settings.flag("invert", False):
            raise ModelNotSupportedError(
                f"{layer.where} has invert=True, which turns numbers into words; leave it out"
            )
        unknown = settings.whole("num_oov_indices")
        check_labels(layer.where, abs(unknown))
        mask, oov = settings.raw("mask_token"), settings.raw("oov_token")
        special = [mask] * (mask is not None and mode == "int") + [oov] * unknown
        start = len(special)
        words = list(layer.vocabulary)
        labels = words[start:] if words[:start] == special else words
        size = start + len(labels)
        if settings.flag("pad_to_max_tokens", False) and mode != "int":
            size = settings.whole("max_tokens")
        settings.flag("sparse", False)
        for key in _NO_MATTER:
            settings.raw(key)
        settings.check_rest()
        _check_words(layer, labels, start, size)
        return cls(tuple(labels), start, size, mode)


# Which unknown word counts as which, and how words are kept, changes nothing for those known.
_NO_MATTER = (
    "dtype",
    "encoding",
    "max_tokens",
    "oov_method",
    "salt",
    "vocabulary",
    "vocabulary_dtype",
    "vocabulary_size",
)


def _check_words(layer: FileLayer, labels: list[Any], start: int, size: int) -> None:
    kind = str if layer.kind == "StringLookup" else int
    if not labels or not all(type(word) is kind for word in labels):
        raise ModelNotSupportedError(
            f"{layer.where} has no vocabulary of {'words' if kind is str else 'whole numbers'}; "
            "call adapt() with the training column"
        )
    if len(set(labels)) != len(labels) or size < start + len(labels):
        raise ModelFileError(f"{layer.where} has a vocabulary that does not fit its settings")
    check_labels(layer.where, len(labels))


def check_labels(where: str, count: int) -> None:
    """Raise where a column would have more categories than the limit."""
    if count > limits.LABELS:
        raise ModelNotSupportedError(
            f"{where} knows {count:,} categories of a column; at most {limits.LABELS:,} are read. "
            "Group the rare ones"
        )
