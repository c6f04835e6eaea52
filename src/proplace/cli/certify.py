"""`proplace certify`."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  (typer reads it at run time)
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import common

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd

    from proplace.model import Model as WholeModel
    from proplace.schema._model import Label
    from proplace.table_files import TableFile


def certify(
    model: common.Model,
    table: Annotated[Path, typer.Option("--input", help="CSV or Parquet file with the rows.")],
    delta: common.Delta,
    schema: common.SchemaFile = None,
    target: common.Target = "1",
    out: Annotated[
        Path | None,
        typer.Option(help="Write the verdict on each row to this .csv or .parquet file."),
    ] = None,
    ids: common.Ids = None,
    drop: common.Drop = None,
    delimiter: common.Delimiter = ",",
    encoding: common.Encoding = "utf-8",
    assume: common.Assume = None,
    as_json: common.Json = False,
) -> None:
    """Say which rows get the class from every network within delta.

    Prints how many rows are robust; with --out also each row: its class now, whether it is robust,
    and bounds on its least margin over all networks within delta.

    [bold]Example[/bold]

    proplace certify --model m.onnx --input people.csv --delta 0.02 --out verdicts.csv
    """
    from proplace.errors import OutputError  # noqa: PLC0415
    from proplace.files import whole_file  # noqa: PLC0415
    from proplace.table_files import is_parquet, open_table  # noqa: PLC0415

    if out is not None and not (is_parquet(out) or out.suffix.lower() == ".csv"):
        raise OutputError(f"{out}: verdicts are written to a .csv, .parquet or .pq file")
    whole = common.read_model(model, assume)
    common.positive_delta(delta)
    source = open_table(table, delimiter=delimiter, encoding=encoding)
    others = [*(ids or []), *(drop or [])]
    whole = common.with_names(whole, schema, source, others)
    features, label = whole.schema, common.target_of(whole, target)
    source.check_columns(list(features.by_name), others=others)
    counts = {"rows": 0, "robust": 0, "not_robust": 0, "undecided": 0, "bad_input": 0}

    def verdicts() -> Iterator[pd.DataFrame]:
        for part in _verdicts(whole, source, delta, label, ids or []):
            counts["rows"] += len(part)
            for verdict, number in part["verdict"].value_counts().items():
                counts[str(verdict)] += int(number)
            yield part

    if out is None:
        for _ in verdicts():
            pass
    else:
        with common.refused_if_there(out), whole_file(out) as file:
            if is_parquet(out):
                _write_parquet(verdicts(), file, source.arrow_types(ids or []), whole.classes)
            else:
                _write_csv(verdicts(), file)
    if as_json:
        facts = {"delta": delta, "target": label, **counts}
        typer.echo(json.dumps(facts if out is None else {**facts, "out": str(out)}))
    else:
        rest = "".join(
            f", {counts[name]} {name}" for name in ("undecided", "bad_input") if counts[name]
        )
        typer.echo(
            f"{counts['robust']} of {counts['rows']} rows get class {label} from every network "
            f"within {delta:g}{rest}"
        )


def _verdicts(
    model: WholeModel, source: TableFile, delta: float, target: Label, ids: list[str]
) -> Iterator[pd.DataFrame]:
    """One line per row, chunk by chunk."""
    import numpy as np  # noqa: PLC0415
    import pandas as pd  # noqa: PLC0415

    from proplace.robustness import certify as certify_table  # noqa: PLC0415

    schema, classes = model.schema, np.array(model.classes, dtype=object)
    for frame, broken in source.frames(schema):
        encoded, problems = schema.encode_valid(frame)
        reasons = {frame.index[i]: text.partition(", ")[2] for i, text in problems.items()} | broken
        good = ~frame.index.isin(list(reasons))
        report = certify_table(model, frame[good], delta, target)
        names = np.where(
            report.robust, "robust", np.where(report.undecided, "undecided", "not_robust")
        )
        columns: dict[str, Any] = {"row": frame.index, **{name: frame[name] for name in ids}}
        for name, values in (
            ("class", classes[model.network.predict(encoded[good])]),
            ("verdict", names),
            ("lower", report.lower),
            ("upper", report.upper),
        ):
            cells = np.full(len(frame), "bad_input" if name == "verdict" else None, dtype=object)
            cells[good] = values
            columns[name] = cells
        columns["reason"] = [reasons.get(row, "") for row in frame.index]
        yield pd.DataFrame(columns)


def _write_csv(parts: Iterable[pd.DataFrame], file: IO[bytes]) -> None:
    from proplace.table_files import write_csv  # noqa: PLC0415

    for n, part in enumerate(parts):
        write_csv(part, file, header=n == 0)


def _write_parquet(
    parts: Iterable[pd.DataFrame],
    file: IO[bytes],
    id_types: dict[str, Any],
    labels: tuple[Label, ...],
) -> None:
    from proplace.optional import require  # noqa: PLC0415

    arrow = require("pyarrow", "parquet", "writing Parquet files")
    parquet = require("pyarrow.parquet", "parquet", "writing Parquet files")
    classes = arrow.array(labels).type
    types = {"row": arrow.int64(), **id_types, "class": classes, "verdict": arrow.string()}
    types |= {"lower": arrow.float64(), "upper": arrow.float64(), "reason": arrow.string()}
    schema = arrow.schema(list(types.items()))
    with parquet.ParquetWriter(file, schema) as writer:
        for part in parts:
            writer.write_table(arrow.Table.from_pandas(part, schema=schema, preserve_index=False))
