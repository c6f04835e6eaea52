"""`--delta`, `--shifts` and `--required-model`: the networks for which an answer must hold."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import common

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Network
    from proplace.core.shifts import Shifts
    from proplace.loaders.model import Model as WholeModel

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


@dataclass(frozen=True)
class Given:
    """What `--delta` or `--shifts` says.

    Attributes
    ----------
    delta
        The number, or the set of networks.
    file
        Where the set was read from; None for a number.
    """

    delta: float | Shifts
    file: Path | None = None

    @classmethod
    def of(cls, delta: float | None, shifts: Path | None) -> Given:
        """Read exactly one of the two."""
        from proplace.core.errors import OptionError  # noqa: PLC0415  (quick help)

        if (delta is None) == (shifts is None):
            many = "only one of them says" if shifts is not None else "one of them must say"
            raise OptionError(
                f"give --delta NUMBER or --shifts FILE: {many} which networks the answers hold for",
                name="--shifts" if shifts is not None else "--delta",
            )
        if shifts is not None:
            return cls(read(shifts), shifts)
        assert delta is not None  # noqa: S101  (one of both is given)
        return cls(positive(delta))

    def check(self, net: Network, model: Path) -> None:
        """Raise where the set is one of other networks than the model's; note if it lies outside."""
        if self.file is None or isinstance(self.delta, float):
            return
        check_fits(self.file, self.delta, net, model)
        if not self.delta.contains(net):
            common.note(
                f"{model} does not lie in the set of {self.file}; proplace shifts show {self.file} "
                f"--model {model} says where not"
            )

    @property
    def words(self) -> str:
        """The networks, in words that follow "every network"."""
        if isinstance(self.delta, float):
            return f"within {self.delta:g}"
        about = f" ({self.delta.description})" if self.delta.description else ""
        return f"of the set {self.file}{about}"

    @property
    def facts(self) -> dict[str, Any]:
        """The same as JSON: a number, or the digest of the set and what it says of itself."""
        if isinstance(self.delta, float):
            return {"delta": self.delta}
        digest, about = self.delta.digest, self.delta.description
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


@dataclass(frozen=True)
class Other:
    """One more model that must accept the answers, and its delta: None if it says none."""

    path: Path
    delta: Given | None

    def asked(self, model: WholeModel) -> WholeModel | tuple[WholeModel, float | Shifts]:
        """Return the model as ``required_models=`` of :class:`proplace.Proplace` takes it."""
        if self.delta is None:
            return model
        self.delta.check(model.network, self.path)
        return model, self.delta.delta


def others(words: Sequence[str]) -> list[Other]:
    """Read what `--required-model` says: MODEL, MODEL:NUMBER or MODEL:SHIFTS.npz.

    A name may hold a colon itself: a file of the whole name comes first, then the last colon counts.
    """
    return [_other(word) for word in words]


def _other(word: str) -> Other:
    from proplace.core.errors import OptionError  # noqa: PLC0415

    name, colon, rest = word.rpartition(":")
    if not colon or Path(word).is_file():
        if not Path(word).is_file():
            raise OptionError(
                f"--required-model {word}: there is no such model file",
                name="--required-model",
                value=word,
            )
        return Other(Path(word), None)
    path = Path(name)
    if not path.is_file():
        raise OptionError(
            f"--required-model {word}: there is no model file {word}, and none called {name} "
            "either; write MODEL, MODEL:0.02 or MODEL:shifts.npz",
            name="--required-model",
            value=word,
        )
    if rest.endswith(".npz"):
        return Other(path, Given(read(Path(rest)), Path(rest)))
    try:
        number = float(rest)
    except ValueError:
        raise OptionError(
            f"--required-model {word}: after the last colon comes the model's delta, a number such as "
            f"0.02 or a .npz file of shifts, not {rest!r}",
            name="--required-model",
            value=word,
        ) from None
    return Other(path, Given(positive(number, f"--required-model {word}: delta")))
