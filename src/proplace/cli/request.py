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


Count = Annotated[
    int,
    typer.Option(
        help="Largest number of counterfactuals per person. Each changes different features."
    ),
]
Preference = Annotated[
    Prefer,
    typer.Option(help="nearest: the smallest distance; sparse: few changed features."),
]
MaxChanges = Annotated[
    int | None, typer.Option(help="Largest number of changed features. Default: any number.")
]
Immutable = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Feature that may not change; may be repeated."),
]
Increasing = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Feature that may rise but not fall; may be repeated."),
]
Decreasing = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Feature that may fall but not rise; may be repeated."),
]
Ranges = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        metavar="NAME=LOW:HIGH",
        help="Range of a feature in the units of the table, such as income=0:90000. income=0: keeps the "
        "upper end; may be repeated.",
    ),
]
Typical = Annotated[
    bool | None,
    typer.Option(
        "--typical/--no-typical",
        help="Prefer counterfactuals that are usual among accepted training rows, or ignore how usual "
        "they are. Default: prefer them for sparse requests and for people with immutable features, "
        "directions or ranges.",
        show_default=False,
    ),
]
Gap = Annotated[
    float,
    typer.Option(
        help="Share of the distance that a nearer counterfactual could save at most: 0.01 is 1%. A "
        "smaller share takes longer; 0 is exact."
    ),
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
