"""Options that several commands share, and the functions that read their values."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from proplace.core.request import Range

PROJECT, PEOPLE, REQUEST, SEARCH, OUTPUT = (
    "Project (replaces keys of the project file)",
    "People",
    "Request",
    "Search",
    "Output",
)
"""Titles of the groups of options in ``--help``."""

Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Project file. Default: proplace.yaml, if it is in this folder.",
        rich_help_panel=PROJECT,
    ),
]
Model = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Trained model: .onnx or .npz; never a pickle.",
        rich_help_panel=PROJECT,
    ),
]
Train = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Training rows: CSV (.gz too) or Parquet.", rich_help_panel=PROJECT
    ),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        metavar="FILE",
        help="Features and rules. Default: the columns of the model.",
        rich_help_panel=PROJECT,
    ),
]
Delta = Annotated[
    str | None,
    typer.Option(
        metavar="DELTA",
        help="Largest change of any parameter, such as 0.02, or the file of a shift set.",
        rich_help_panel=PROJECT,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="LABEL", help="Class that the people want. Default: 1.", rich_help_panel=PROJECT
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="Column that is not a feature; repeatable.",
        rich_help_panel=PROJECT,
    ),
]
Ids = Annotated[
    list[str] | None,
    typer.Option(
        "--id",
        metavar="COLUMN",
        help="Column to keep beside the results; repeatable.",
        rich_help_panel=PROJECT,
    ),
]
People = Annotated[
    Path | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="Table of people. Default: tables.people of the project file.",
        rich_help_panel=PEOPLE,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON on standard output.", rich_help_panel=OUTPUT)
]


class Prefer(StrEnum):
    """Properties of the best counterfactual."""

    nearest = "nearest"
    sparse = "sparse"


Count = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Largest number of alternatives per person. Default: 1.",
        rich_help_panel=REQUEST,
    ),
]
Preference = Annotated[
    Prefer | None,
    typer.Option(
        help="Smallest distance, or few changes. Default: nearest.", rich_help_panel=REQUEST
    ),
]
MaxChanges = Annotated[
    int | None,
    typer.Option(metavar="N", help="Largest number of changed features.", rich_help_panel=REQUEST),
]
Immutable = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Feature that may not change; repeatable.", rich_help_panel=REQUEST
    ),
]
Increasing = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Feature that may not decrease; repeatable.", rich_help_panel=REQUEST
    ),
]
Decreasing = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Feature that may not increase; repeatable.", rich_help_panel=REQUEST
    ),
]
Ranges = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        metavar="NAME=LOW:HIGH",
        help="Allowed range, such as income=0:90000 or income=0:; repeatable.",
        rich_help_panel=REQUEST,
    ),
]
Tolerance = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=LESS:MORE",
        help="Covered miss, such as income=500 or age=0:1; repeatable.",
        rich_help_panel=REQUEST,
    ),
]
Typical = Annotated[
    bool | None,
    typer.Option(
        "--typical/--no-typical",
        help="Prefer typical counterfactuals, or do not. Default: for sparse or restricted requests.",
        show_default=False,
        rich_help_panel=REQUEST,
    ),
]
Gap = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Optimality gap; 0 is exact. Default: 0.01.",
        rich_help_panel=REQUEST,
    ),
]


def delta_of(text: str | None) -> float | Path | None:
    """Read ``--delta``: a positive number, or the path of a shift set."""
    from proplace.core.errors import DeltaError  # noqa: PLC0415  (quick help)

    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        if Path(text).is_file():
            return Path(text)
        why = "is a folder" if Path(text).is_dir() else "is not a number, and there is no such file"
        raise DeltaError(
            f"--delta {text}: this {why}. Give a positive number such as 0.02, or the file of a shift "
            "set (proplace calibrate --out)",
            name="--delta",
            value=text,
        ) from None
    if not (math.isfinite(number) and number > 0.0):
        raise DeltaError(
            f"--delta must be a positive number such as 0.02, not {number}",
            name="--delta",
            value=number,
        )
    return number


def tolerance_of(words: list[str] | None) -> dict[str, tuple[float, float]] | None:
    """Read the allowed miss of each feature below and above. None without ``--tolerance``."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    found: dict[str, tuple[float, float]] = {}
    for word in words or []:
        name, _, missed = word.rpartition("=")
        less, colon, more = missed.partition(":")
        try:
            pair = float(less), float(more if colon else less)
        except ValueError:
            pair = math.nan, math.nan
        if not name or not all(0.0 <= t < math.inf for t in pair):
            raise OptionError(
                f"--tolerance {word!r}: give the name of a feature and a number of its unit, 0 or "
                "more, such as income=500, or two numbers for less and more, such as age=0:1",
                name="--tolerance",
                value=word,
            )
        if name in found:
            raise OptionError(f"--tolerance names {name!r} twice", name="--tolerance", value=word)
        found[name] = pair
    return found or None


def ranges_of(words: list[str] | None) -> dict[str, Range] | None:
    """Read the ends of ranges. None without ``--range``."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    found: dict[str, Range] = {}
    for word in words or []:
        name, _, ends = word.rpartition("=")
        parts = [_number(part) for part in ends.split(":")]
        wrong = any(part is not None and math.isnan(part) for part in parts)
        if not name or len(parts) != 2 or wrong:
            raise OptionError(
                f"--range {word!r}: give the name of a feature and its two ends, such as "
                "income=0:90000; an end may be left out: income=0:",
                name="--range",
                value=word,
            )
        if name in found:
            raise OptionError(f"--range names {name!r} twice", name="--range", value=word)
        found[name] = parts[0], parts[1]
    return found or None


def pairs_of(words: list[str] | None) -> dict[str, str]:
    """Read name=value pairs."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    found: dict[str, str] = {}
    for word in words or []:
        name, sign, value = word.partition("=")
        if not sign or name in found:
            problem = "occurs twice" if sign else "is not of the form name=value"
            raise OptionError(f"{word!r} {problem}", name=name, value=word)
        found[name] = value
    return found


def _number(text: str) -> float | None:
    """Read a number. None if there is none, NaN if it is something else."""
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return math.nan
