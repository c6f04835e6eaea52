"""`proplace shifts`: sets of networks, an interval for each parameter, from past models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import common, delta
from proplace.cli.console import say, say_table, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Network
    from proplace.core.shifts import Shifts
    from proplace.loaders.model import Model as WholeModel

_MOST = 5  # parameters outside of their intervals that are named

shifts = typer.Typer(
    no_args_is_help=True,
    help="Make and look at sets of networks: an interval for each parameter, from past models.",
)

Models = Annotated[
    list[Path], typer.Argument(help="Past models, in any format that --model takes.")
]
Out = Annotated[Path, typer.Option(help="The .npz file to write; nothing is overwritten.")]
InUse = Annotated[
    Path | None,
    typer.Option(
        "--model",
        help="The model in use: the others are taken behind its scaler. It need not be in the set; "
        "name it among them if it is to be. Default: the first of them.",
    ),
]


@shifts.command()
def bounding(
    models: Models,
    out: Out,
    model: InUse = None,
    cutoff: common.Cutoff = None,
    schema: common.SchemaFile = None,
    as_json: common.Json = False,
) -> None:
    """Write the smallest set that contains some models.

    The interval of a parameter goes from its smallest to its largest value among them. It says
    nothing about the next model: for that there is learn.

    [bold]Example[/bold]

    proplace shifts bounding 2021.onnx 2022.onnx 2023.onnx --model m.onnx --out shifts.npz
    """
    from proplace.core.shifts import Shifts  # noqa: PLC0415  (quick help)

    check_out(out)
    source, history = _models(models, model, schema, cutoff)
    _write(Shifts.bounding(history, source=source), out, as_json=as_json)


@shifts.command()
def learn(
    models: Models,
    out: Out,
    coverage: Annotated[
        float,
        typer.Option(help="Probability with which the next model is to lie in the set, below 1."),
    ] = 0.95,
    model: InUse = None,
    cutoff: common.Cutoff = None,
    seed: Annotated[int, typer.Option(help="Of the split of the models.")] = 0,
    schema: common.SchemaFile = None,
    as_json: common.Json = False,
) -> None:
    """Learn a set from past models that contains the next one with some probability.

    The shape comes from some of the models, the size from the others (split conformal): the
    probability holds if past and next models are exchangeable, retrained in the same way. A coverage
    that so few models cannot give is refused with the number that is needed.

    [bold]Example[/bold]

    proplace shifts learn retrained/*.onnx --model m.onnx --coverage 0.9 --out shifts.npz
    """
    from proplace.core.shifts import Shifts  # noqa: PLC0415

    check_out(out)
    source, history = _models(models, model, schema, cutoff)
    _write(Shifts.learn(history, coverage, source=source, seed=seed), out, as_json=as_json)


@shifts.command()
def show(
    file: Annotated[
        Path, typer.Argument(help="A file that bounding, learn or Shifts.save has written.")
    ],
    model: Annotated[
        Path | None, typer.Option(help="A model: does it lie in the set, and if not, where not?")
    ] = None,
    schema: common.SchemaFile = None,
    as_json: common.Json = False,
) -> None:
    """Show what is in a file of shifts: where it comes from, and the intervals of each layer.

    With --model also whether the model lies in the set, whether the intervals are symmetric around
    it, and which of its parameters lie farthest outside.

    [bold]Example[/bold]

    proplace shifts show shifts.npz --model m.onnx
    """
    box = delta.read(file)
    net = None
    if model is not None:
        net = _of_schema(model, schema, box).network
        delta.check_fits(file, box, net, model)
    if as_json:
        typer.echo(json.dumps(_facts(box, net), indent=2))
    else:
        _show(box, net, model)


# -- inside --------------------------------------------------------------------------------------


def check_out(out: Path) -> None:
    """Say what is wrong with the file that is to be written, before any work."""
    from proplace.core.errors import OutputError  # noqa: PLC0415

    if out.suffix != ".npz":
        raise OutputError(
            f"{out}: shifts are written to an .npz file; give a name that ends so", name=out.name
        )
    with common.refused_if_there(out):
        pass


def _of_schema(path: Path, schema: Path | None, box: Shifts) -> WholeModel:
    """Read a model as the models of a set were read: with its cut-off."""
    from proplace.loaders.cutoffs import Threshold  # noqa: PLC0415

    whole, threshold = common.read_model(path), Threshold.of_box(box.encoding)
    whole = whole if threshold is None else whole.with_threshold(threshold)
    return whole if schema is None else common.with_schema(whole, schema)


def _models(
    paths: Sequence[Path],
    model: Path | None,
    schema: Path | None,
    cutoff: str | None,
) -> tuple[WholeModel | None, list[WholeModel]]:
    """The model in use and the others, which can be compared with it (else with the first of them)."""
    from proplace.core.errors import DeltaError, InputError  # noqa: PLC0415
    from proplace.core.shifts import same_architecture  # noqa: PLC0415
    from proplace.loaders.coordinates import in_coordinates_of, with_cutoff_of  # noqa: PLC0415

    every = [*([] if model is None else [model]), *paths]
    first, *later = [common.read_model(path) for path in every]
    first = common.with_cutoff(first, cutoff)
    wholes = [first, *(with_cutoff_of(first, other) for other in later)]
    if schema is not None:
        wholes = [common.with_schema(whole, schema, scaled=not n) for n, whole in enumerate(wholes)]
    for path, whole in zip(every, wholes, strict=True):
        try:
            same_architecture([wholes[0].network, in_coordinates_of(wholes[0], whole)])
        except DeltaError:
            raise DeltaError(
                f"{path}: has another architecture than {every[0]}, so that they share no set of "
                "parameters; leave it out, or let explain --required-model ask it beside the others",
                name=path.name,
            ) from None
        except InputError as error:
            raise InputError(
                f"{path}: cannot be compared with {every[0]}: {error}", name=path.name
            ) from None
    return (None, wholes) if model is None else (wholes[0], wholes[1:])


def _write(made: Shifts, out: Path, *, as_json: bool) -> None:
    with common.refused_if_there(out):
        made.save(out)
    if as_json:
        typer.echo(json.dumps({**_facts(made, None), "out": str(out)}, indent=2))
        return
    say(made.description)
    if common.watched():
        tell(f"{out}: look at it with proplace shifts show {out}")


def _facts(box: Shifts, net: Network | None) -> dict[str, Any]:
    """What is known about a set, as JSON can hold it."""
    from dataclasses import asdict  # noqa: PLC0415

    from proplace.core.shifts import by_layer, counts, outside  # noqa: PLC0415

    moving, parameters = counts(box)
    facts: dict[str, Any] = {
        "digest": box.digest,
        "about": box.description,
        "parameters": parameters,
        "moving": moving,
        "layers": [asdict(layer) for layer in by_layer(box, net)],
    }
    if net is not None:
        out = outside(box, net)
        facts |= {
            "contains_model": box.contains(net),
            "outside": len(out),
            "farthest_outside": [asdict(outlier) for outlier in out[:_MOST]],
        }
    return facts


def _show(box: Shifts, net: Network | None, model: Path | None) -> None:
    """Print a set for people."""
    from proplace.core.shifts import by_layer, counts, outside  # noqa: PLC0415

    moving, parameters = counts(box)
    say(f"about     {box.description or '(nothing is said)'}")
    say(f"SHA-256   {box.digest}")
    say(f"moving    {moving} of {parameters} parameters")
    titles = ["layer", "parameters", "moving", "longest", "median"]
    rows = [
        [
            str(n),
            str(layer.parameters),
            str(layer.moving),
            f"{layer.largest:.4g}",
            f"{layer.median:.4g}",
            *([] if layer.symmetric is None else ["yes" if layer.symmetric else "no"]),
        ]
        for n, layer in enumerate(by_layer(box, net), start=1)
    ]
    say_table(titles if net is None else [*titles, "symmetric around the model"], rows)
    if net is None:
        return
    if box.contains(net):
        say(f"{model} lies in the set")
        return
    out = outside(box, net)
    say(
        f"{model} does not lie in the set: {len(out)} of its {parameters} parameters are outside of "
        "their intervals. Answers are then asked of it as well. Farthest outside:"
    )
    for outlier in out[:_MOST]:
        say(
            f"  {outlier.name}: {outlier.value:.6g}, outside of [{outlier.low:.6g}, "
            f"{outlier.high:.6g}] by {outlier.beyond:.3g}"
        )
