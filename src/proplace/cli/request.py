"""Options of `proplace explain` that say what is wanted of a counterfactual."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from proplace.core.request import Range


class Prefer(StrEnum):
    """Properties of the best counterfactual."""

    nearest = "nearest"
    sparse = "sparse"


Count = Annotated[int, typer.Option(help="Answers for each person, each changing else.")]
Preference = Annotated[
    Prefer,
    typer.Option(help="nearest: the smallest distance; sparse: few changed features."),
]
MaxChanges = Annotated[int | None, typer.Option(help="Largest number of changed features.")]
Immutable = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Feature that may not change; may be repeated."),
]
Increasing = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Feature that may not fall; may be repeated."),
]
Decreasing = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Feature that may not rise; may be repeated."),
]
Ranges = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        metavar="NAME=LOW:HIGH",
        help="Values that a feature may take, such as income=0:90000; an end may be left out; may be "
        "repeated.",
    ),
]
Typical = Annotated[
    bool | None,
    typer.Option(
        "--typical/--no-typical",
        help="Return points that are usual among accepted rows, or search without that filter. "
        "Default: filter sparse requests and restricted people.",
        show_default=False,
    ),
]
Gap = Annotated[
    float,
    typer.Option(help="Relative optimality gap at which a search ends; 0: as exact as it gets."),
]


def ranges_of(words: list[str] | None) -> dict[str, Range]:
    """Read the ends of ranges as they are written on the command line."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    found: dict[str, Range] = {}
    for word in words or []:
        name, _, ends = word.rpartition("=")
        parts = [_number(part) for part in ends.split(":")]
        if (
            not name
            or len(parts) != 2
            or any(part is not None and math.isnan(part) for part in parts)
        ):
            raise OptionError(
                f"--range {word!r}: give the name of a feature and its two ends, such as "
                "income=0:90000; an end may be left out: income=0:",
                name="--range",
                value=word,
            )
        if name in found:
            raise OptionError(f"--range names {name!r} twice", name="--range", value=word)
        found[name] = parts[0], parts[1]
    return found


def _number(text: str) -> float | None:
    """Read a number; None if there is none, NaN if it is something else."""
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return math.nan
