"""`proplace certify`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import inputs, options
from proplace.cli.console import echo, is_quiet
from proplace.core.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pandas as pd

    from proplace.certification import CertificationResult
    from proplace.core.shifts import Shifts
    from proplace.loaders.model import Model
    from proplace.project import Project
    from proplace.schema.values import Label
    from proplace.tables.files import TableFile
    from proplace.tables.writing import TableWriter

COLUMNS = {
    "row": "Number of the row in the table; the first is 0.",
    "class": "Label that the model gives today.",
    "verdict": "`robust`, `not_robust`, `undecided` or `bad_input`.",
    "lower": "Lower bound of the worst-case margin.",
    "upper": "Upper bound of the worst-case margin.",
    "reason": "Why the row is `bad_input`.",
}
"""Columns of the verdicts, beside the id columns, with their meaning."""

Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Verdict on each row, as .csv or .parquet.",
        rich_help_panel=options.OUTPUT,
    ),
]


def certify(
    config: options.Config = None,
    model: options.Model = None,
    delta: options.Delta = None,
    target: options.Target = None,
    table: options.People = None,
    out: Out = None,
    as_json: options.Json = False,
) -> None:
    """Count the rows of a table that get the class from every network within delta.

    --out lists each row: its class today, the verdict, and bounds on its worst-case
    margin. If the project file has request.tolerance, every row within the
    tolerance must get the class as well.

    [bold]Example[/bold]

    proplace certify --model m.onnx --input people.csv --delta 0.02 --out verdicts.csv
    """
    from proplace.core.errors import OptionError, OutputError  # noqa: PLC0415  (quick help)
    from proplace.core.files import atomic_write  # noqa: PLC0415
    from proplace.core.request import tolerance_pairs  # noqa: PLC0415
    from proplace.explain.robustness import certify as certify_table  # noqa: PLC0415
    from proplace.project import Project  # noqa: PLC0415
    from proplace.tables.files import is_parquet  # noqa: PLC0415

    if out is not None and not (is_parquet(out) or out.suffix.lower() == ".csv"):
        raise OutputError(f"{out}: give a name that ends in .csv or .parquet", name=out.name)
    project = Project.find(config).changed(
        model=model, delta=options.delta_of(delta), target=target, people=table
    )
    if project.people is None:
        raise OptionError("give the rows as --input FILE", name="--input")
    project.check_has("model", "delta", options=("model", "delta"))
    tolerance = tolerance_pairs(project.request.get("tolerance", {})) or None
    read, source = project.read_model(), project.table(project.people)
    whole = project.named(read, source)
    shifts, wanted = inputs.shifts_of(project, whole), project.label(whole)
    source.check_columns(list(whole.schema.by_name), others=project.others)
    agreement = inputs.check_predictions(
        whole, source, inputs.usable_rows(source, whole.schema), project.predictions
    )
    asked = partial(certify_table, delta=shifts, target=wanted, tolerance=tolerance)
    ids = [name for name in project.id if name in source.columns]
    verdicts = _Verdicts(whole, source, asked, ids)
    with progress_bar("certify", source.rows, show=not is_quiet()) as advance:
        if out is None:
            for _ in verdicts.parts(advance):
                pass
        else:
            with inputs.new_file(out), atomic_write(out) as file:
                _writer(out, source, ids, whole.classes).write(verdicts.parts(advance), file)
    if as_json:
        facts = {**_facts(shifts), "target": wanted, **verdicts.counts, **agreement}
        facts |= {} if tolerance is None else {"tolerance": tolerance}
        typer.echo(json.dumps(facts if out is None else {**facts, "out": str(out)}))
    else:
        label = whole.class_name(whole.target(wanted))
        echo(verdicts.sentence(label, _within(shifts, project), tolerance))


def _facts(delta: float | Shifts) -> dict[str, Any]:
    """Return delta as JSON: a number, or the digest of the shift set and its description."""
    if isinstance(delta, float):
        return {"delta": delta}
    digest, about = delta.digest, delta.description
    return {"delta": digest, "shifts": {"digest": digest, "about": about}}


def _within(delta: float | Shifts, project: Project) -> str:
    """Describe the networks in words that follow "every network"."""
    if isinstance(delta, float):
        return f"within {delta:g}"
    about = f" ({delta.description})" if delta.description else ""
    return f"of the set {project.delta}{about}"


class _Verdicts:
    """The verdicts on the rows of a table, and their counts once all parts are read."""

    def __init__(
        self,
        model: Model,
        source: TableFile,
        asked: Callable[[Model, pd.DataFrame], CertificationResult],
        ids: list[str],
    ) -> None:
        self._model, self._source, self._asked, self._ids = model, source, asked, ids
        self.counts = {"rows": 0, "robust": 0, "not_robust": 0, "undecided": 0, "bad_input": 0}

    def parts(self, advance: Callable[[int], None]) -> Iterator[pd.DataFrame]:
        """Yield one line per row, chunk by chunk, and count the rows of each."""
        import numpy as np  # noqa: PLC0415
        import pandas as pd  # noqa: PLC0415

        model, ours = self._model, _names(self._ids)
        schema, classes = model.schema, np.array(model.classes, dtype=object)
        for frame, broken in self._source.frames(schema):
            encoded, problems = schema.encode_people(frame)
            reasons = {frame.index[i]: bad.reason for i, bad in problems.items()}
            reasons |= {row: bad.reason for row, bad in broken.items()}
            good = ~frame.index.isin(list(reasons))
            report = self._asked(model, frame[good])
            verdicts = np.where(
                report.robust, "robust", np.where(report.undecided, "undecided", "not_robust")
            )
            columns: dict[str, Any] = {ours["row"]: frame.index}
            columns |= {name: frame[name] for name in self._ids}
            for name, values in (
                ("class", classes[model.network.predict(encoded[good])]),
                ("verdict", verdicts),
                ("lower", report.lower),
                ("upper", report.upper),
            ):
                cells = np.full(
                    len(frame), "bad_input" if name == "verdict" else None, dtype=object
                )
                cells[good] = values
                columns[ours[name]] = cells
            columns[ours["reason"]] = [reasons.get(row, "") for row in frame.index]
            part = pd.DataFrame(columns)
            self.counts["rows"] += len(part)
            for verdict, count in part[ours["verdict"]].value_counts().items():
                self.counts[str(verdict)] += int(count)
            yield part
            advance(len(part))

    def sentence(
        self, label: str, within: str, tolerance: Mapping[str, tuple[float, float]] | None
    ) -> str:
        """Describe the counts."""
        counts = self.counts
        misses = ", ".join(
            f"{name} is {less:g} less or {more:g} more"
            for name, (less, more) in (tolerance or {}).items()
        )
        rest = "".join(f", {counts[n]} {n}" for n in ("undecided", "bad_input") if counts[n])
        return (
            f"{counts['robust']} of {counts['rows']} rows get {label} from every network {within}"
            f"{f', also if {misses}' if misses else ''}{rest}"
        )


def _names(ids: list[str]) -> dict[str, str]:
    """Return the names of the columns of verdicts, none of them a name of the user."""
    from proplace.tables.writing import free_names  # noqa: PLC0415

    return free_names(tuple(COLUMNS), ids)


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
