"""`--delta`, `--shifts` and `--required-model`: the networks for which an answer must hold."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import common

if TYPE_CHECKING:
    from proplace.core.network import Network
    from proplace.core.shifts import Shifts

Number = Annotated[
    float | None, typer.Option("--delta", help="Largest change of any parameter, such as 0.02.")
]
File = Annotated[
    Path | None,
    typer.Option(
        "--shifts",
        help="In place of --delta: a file with an interval for each parameter (see: shifts).",
    ),
]
Also = Annotated[
    list[str] | None,
    typer.Option(
        "--required-model",
        metavar="MODEL[:DELTA]",
        help="Another model that must accept every counterfactual, with its own delta or shifts file, "
        "such as last-year.onnx:0.01; may be repeated.",
    ),
]


def chosen(delta: float | None, shifts: Path | None) -> float | Shifts:
    """Return what `--delta` or `--shifts` says, if exactly one of them is given."""
    from proplace.core.errors import OptionError  # noqa: PLC0415  (quick help)

    if shifts is not None and delta is None:
        return read(shifts)
    if delta is not None and shifts is None:
        return positive(delta)
    many = "only one of them says" if shifts is not None else "one of them must say"
    raise OptionError(
        f"give --delta NUMBER or --shifts FILE: {many} which networks the answers hold for",
        name="--shifts" if shifts is not None else "--delta",
    )


def check(delta: float | Shifts, file: Path | None, net: Network, model: Path) -> None:
    """Raise if the set of a file is one of other networks; note if the model lies outside of it."""
    if file is None or isinstance(delta, float):
        return
    check_fits(file, delta, net, model)
    if not delta.contains(net):
        common.note(
            f"{model} does not lie in the set of {file}; proplace shifts show {file} "
            f"--model {model} says where not"
        )


def words(delta: float | Shifts, file: Path | None) -> str:
    """Describe the networks in words that follow "every network"."""
    if isinstance(delta, float):
        return f"within {delta:g}"
    about = f" ({delta.description})" if delta.description else ""
    return f"of the set {file}{about}"


def facts(delta: float | Shifts) -> dict[str, Any]:
    """Return delta as JSON: a number, or the digest of the set and its description."""
    if isinstance(delta, float):
        return {"delta": delta}
    digest, about = delta.digest, delta.description
    return {"delta": digest, "shifts": {"digest": digest, "about": about}}


def positive(delta: float, name: str = "--delta") -> float:
    """Return delta, or say that it must be a positive number."""
    from proplace.core.errors import DeltaError  # noqa: PLC0415

    if not (math.isfinite(delta) and delta > 0.0):
        raise DeltaError(
            f"{name} must be a positive number such as 0.02, not {delta}", name=name, value=delta
        )
    return float(delta)


def read(path: Path) -> Shifts:
    """Read a file of shifts."""
    from proplace.core.errors import DeltaError  # noqa: PLC0415
    from proplace.core.shifts import Shifts  # noqa: PLC0415

    if not path.is_file():
        why = "is a folder" if path.is_dir() else "no such file"
        raise DeltaError(
            f"{path}: {why}; proplace shifts bounding MODEL MODEL ... --out {path.name} makes one",
            name=path.name,
        )
    return Shifts.load(path)


def check_fits(path: Path, shifts: Shifts, net: Network, model: Path) -> None:
    """Raise where a set of networks and the network of a model cannot be compared."""
    from proplace.core.errors import DeltaError  # noqa: PLC0415
    from proplace.core.shifts import Shifts  # noqa: PLC0415

    with suppress(DeltaError):
        Shifts.of(net, shifts)
        return
    own = [(box.low.W.shape, box.low.b is None) for box in shifts.layers]
    if own != [(layer.W.shape, layer.b is None) for layer in net.layers]:
        raise DeltaError(
            f"{path}: its intervals are for another architecture ({_sizes(shifts.low)}) than that of "
            f"{model} ({_sizes(net)}); give the model that they were made for, or make a file from "
            f"retrainings of this one: proplace shifts bounding MODEL MODEL ... --model {model} --out "
            "shifts.npz",
            name=path.name,
        )
    raise DeltaError(
        f"{path}: its intervals are for networks behind another scaler or encoding than that of "
        f"{model}; make it again with this model, and the same --schema if there is one, so that the "
        f"others are taken behind its scaler: proplace shifts bounding MODEL MODEL ... --model {model} "
        "--out shifts.npz",
        name=path.name,
    )


def _sizes(net: Network) -> str:
    sizes = [net.layers[0].W.shape[1], *(len(layer.W) for layer in net.layers)]
    bare = "" if all(layer.b is not None for layer in net.layers) else ", some layers without bias"
    return "-".join(map(str, sizes)) + bare


# -- other models --------------------------------------------------------------------------------


def required(word: str) -> tuple[Path, float | Shifts | None, Path | None]:
    """Read one `--required-model`: MODEL, MODEL:NUMBER or MODEL:SHIFTS.npz.

    Returns the file of the model, its delta or shifts, and the file of these. A name may hold a colon
    itself: a file of the whole name comes first, then the last colon counts.
    """
    from proplace.core.errors import OptionError  # noqa: PLC0415

    name, colon, rest = word.rpartition(":")
    if not colon or Path(word).is_file():
        if not Path(word).is_file():
            raise OptionError(
                f"--required-model {word}: there is no such model file",
                name="--required-model",
                value=word,
            )
        return Path(word), None, None
    path = Path(name)
    if not path.is_file():
        raise OptionError(
            f"--required-model {word}: there is no model file {word}, and none called {name} "
            "either; write MODEL, MODEL:0.02 or MODEL:shifts.npz",
            name="--required-model",
            value=word,
        )
    if rest.endswith(".npz"):
        return path, read(Path(rest)), Path(rest)
    try:
        number = float(rest)
    except ValueError:
        raise OptionError(
            f"--required-model {word}: after the last colon comes the model's delta, a number such as "
            f"0.02 or a .npz file of shifts, not {rest!r}",
            name="--required-model",
            value=word,
        ) from None
    return path, positive(number, f"--required-model {word}: delta"), None
