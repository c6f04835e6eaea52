"""`proplace certify`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path  # noqa: TC003  (typer reads it at run time)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import common, comparison, delta
from proplace.cli.console import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pandas as pd

    from proplace.certification import CertificationResult
    from proplace.loaders.model import Model as WholeModel
    from proplace.schema.values import Label
    from proplace.tables.files import TableFile
    from proplace.tables.writing import TableWriter


def certify(
    model: common.Model,
    table: Annotated[
        Path, typer.Option("--input", help="CSV (.gz too) or Parquet file with the rows.")
    ],
    number: delta.Number = None,
    shifts: delta.File = None,
    schema: common.SchemaFile = None,
    predictions: comparison.Predictions = None,
    target: common.Target = common.DEFAULT_TARGET,
    cutoff: common.Cutoff = None,
    tolerance: common.Tolerance = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the verdict on each row to this .csv or .parquet file."),
    ] = None,
    ids: common.Ids = None,
    drop: common.Drop = None,
    delimiter: common.Delimiter = None,
    encoding: common.Encoding = "utf-8",
    as_json: common.Json = False,
) -> None:
    """Say which rows get the class from every network within delta.

    Prints how many rows are robust; with --out also each row: its class now, whether it is robust,
    and bounds on its least margin over all networks within delta. With --shifts FILE in place of
    --delta it is every network of that set. With --tolerance, every row that misses the given one by no
    more must get the class, too.

    [bold]Example[/bold]

    proplace certify --model m.onnx --input people.csv --delta 0.02 --out verdicts.csv
    """
    from proplace.core.errors import OutputError  # noqa: PLC0415
    from proplace.core.files import atomic_write  # noqa: PLC0415
    from proplace.explain.robustness import certify as certify_table  # noqa: PLC0415
    from proplace.tables.files import is_parquet, open_table  # noqa: PLC0415

    if out is not None and not (is_parquet(out) or out.suffix.lower() == ".csv"):
        raise OutputError(
            f"{out}: verdicts are written to a .csv, .parquet or .pq file", name=out.name
        )
    given, missed = delta.chosen(number, shifts), common.tolerance_of(tolerance)
    whole = common.read_model(model, cutoff)
    source = open_table(table, delimiter=delimiter, encoding=encoding)
    others = [*(ids or []), *(drop or []), *([] if predictions is None else [predictions])]
    whole = common.with_names(whole, schema, source, others)
    delta.check(given, shifts, whole.network, model)
    features, wanted = whole.schema, common.target_of(whole, target)
    source.check_columns(list(features.by_name), others=others)
    names = _names(ids or [])
    agreement = comparison.check_predictions(
        whole, source, common.good_rows(source, features), predictions
    )
    counts = {"rows": 0, "robust": 0, "not_robust": 0, "undecided": 0, "bad_input": 0}

    def verdicts() -> Iterator[pd.DataFrame]:
        asked = partial(certify_table, delta=given, target=wanted, tolerance=missed)
        for part in _verdicts(whole, source, asked, ids or []):
            counts["rows"] += len(part)
            for verdict, count in part[names["verdict"]].value_counts().items():
                counts[str(verdict)] += int(count)
            yield part

    if out is None:
        for _ in verdicts():
            pass
    else:
        with common.refused_if_there(out), atomic_write(out) as file:
            _writer(out, source, ids or [], whole.classes).write(verdicts(), file)
    if as_json:
        facts = {**delta.facts(given), "target": wanted, **counts, **agreement}
        facts |= {} if missed is None else {"tolerance": missed}
        typer.echo(json.dumps(facts if out is None else {**facts, "out": str(out)}))
    else:
        rest = "".join(
            f", {counts[name]} {name}" for name in ("undecided", "bad_input") if counts[name]
        )
        label = whole.class_name(whole.target(wanted))
        say(
            f"{counts['robust']} of {counts['rows']} rows get {label} from every network "
            f"{delta.words(given, shifts)}{_missed(missed)}{rest}"
        )


def _missed(tolerance: dict[str, tuple[float, float]] | None) -> str:
    """By how much rows may be missed, in words."""
    if tolerance is None:
        return ""
    words = [
        f"{name} is {less:g} less or {more:g} more" for name, (less, more) in tolerance.items()
    ]
    return f", also if {', '.join(words)}"


def _verdicts(
    model: WholeModel,
    source: TableFile,
    asked: Callable[[WholeModel, pd.DataFrame], CertificationResult],
    ids: list[str],
) -> Iterator[pd.DataFrame]:
    """One line per row, chunk by chunk."""
    import numpy as np  # noqa: PLC0415
    import pandas as pd  # noqa: PLC0415

    schema, classes, ours = model.schema, np.array(model.classes, dtype=object), _names(ids)
    for frame, broken in source.frames(schema):
        encoded, problems = schema.encode_people(frame)
        reasons = {frame.index[i]: bad.reason for i, bad in problems.items()}
        reasons |= {row: bad.reason for row, bad in broken.items()}
        good = ~frame.index.isin(list(reasons))
        report = asked(model, frame[good])
        names = np.where(
            report.robust, "robust", np.where(report.undecided, "undecided", "not_robust")
        )
        columns: dict[str, Any] = {ours["row"]: frame.index}
        columns |= {name: frame[name] for name in ids}
        for name, values in (
            ("class", classes[model.network.predict(encoded[good])]),
            ("verdict", names),
            ("lower", report.lower),
            ("upper", report.upper),
        ):
            cells = np.full(len(frame), "bad_input" if name == "verdict" else None, dtype=object)
            cells[good] = values
            columns[ours[name]] = cells
        columns[ours["reason"]] = [reasons.get(row, "") for row in frame.index]
        yield pd.DataFrame(columns)


def _names(ids: list[str]) -> dict[str, str]:
    """What the columns of the verdicts are called beside those of the user."""
    from proplace.tables.writing import free_names  # noqa: PLC0415

    return free_names(("row", "class", "verdict", "lower", "upper", "reason"), ids)


def _writer(
    out: Path, source: TableFile, ids: list[str], classes: tuple[Label, ...]
) -> TableWriter:
    from proplace.tables.files import is_parquet  # noqa: PLC0415
    from proplace.tables.writing import TableWriter, labels_type  # noqa: PLC0415

    ours = _names(ids)
    kept: dict[str, Any] = source.arrow_types(ids) if is_parquet(out) else dict.fromkeys(ids, str)
    types = {"class": labels_type(classes), "verdict": str, "lower": float, "upper": float}
    types |= {"reason": str}
    return TableWriter(
        "parquet" if is_parquet(out) else "csv",
        {ours["row"]: int, **kept, **{ours[name]: kind for name, kind in types.items()}},
    )
