"""Explanations of a file of any size, written in shards, so that a killed run resumes.

The folder of a batch holds::

    manifest.json                the request and the model, as digests and options
    network.npz                  the network that certificates name
    shifts.npz                   the shift set, unless delta is a radius
    network-2.npz, ...           required models, and their shift sets
    shards/rows-0...0-0...512-5e1f...ab.csv    results of the rows 0 to 511
    results.csv                  all results, once the last row is done (no shards then)

Every file appears whole or not at all. The name of a shard has its rows and a digest. So a killed
run, even with ``kill -9``, loses only the rows since the last shard, and no row is written twice. A
damaged shard is detected, and its rows are done again.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import joblib

from proplace import __version__
from proplace.batch.folder import Folder, Layout, Rows
from proplace.batch.manifest import About, Manifest
from proplace.batch.results import read_results
from proplace.core.errors import OptionError, OutputError, TableError
from proplace.core.progress import progress_bar
from proplace.explain.record import proof_name
from proplace.schema import files
from proplace.tables.files import open_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.batch.shards import Range
    from proplace.core.guarantee import Guarantee
    from proplace.core.request import Request
    from proplace.explain.base import Explainer
    from proplace.explain.results import Explanations
    from proplace.explain.words import Wording
    from proplace.tables.files import TableFile
    from proplace.tables.writing import Format

__all__ = ["Summary", "explain_file", "read_results"]

_MERGES = 3  # stop if the disk damages shards again and again


@dataclass(frozen=True)
class Summary:
    """The outcome of a batch.

    Attributes
    ----------
    results
        The file with all answers.
    rows
        Number of people.
    resumed
        Number of people that an earlier run had done.
    statuses
        Number of people by the status of their first row. The next run tries those with
        ``worker_died`` again. quarantined Damaged shards, under their new names. Their rows were
        done again.
    """

    results: Path
    rows: int
    resumed: int
    statuses: dict[str, int]
    quarantined: tuple[Path, ...] = ()


def explain_file(
    explainer: Explainer,
    table: str | os.PathLike[str] | TableFile,
    out: str | os.PathLike[str],
    request: Request | None = None,
    *,
    ids: Sequence[str] = (),
    drop: Sequence[str] = (),
    kind: Format = "csv",
    every: float = 5.0,
    certificates: bool = False,
    progress: bool = False,
    row: int | None = None,
    wording: Wording | None = None,
) -> Summary:
    """Explain each row of a table file, or resume an earlier run.

    Parameters
    ----------
    explainer
        A fitted explainer.
    table
        A CSV or Parquet file, or a table from :func:`proplace.tables.files.open_table`.
    out
        Folder of the batch. It is created if necessary.
    request
        The request (:meth:`proplace.Proplace.request`). None: target 1 and the defaults.
    ids
        Columns that are not features and are kept beside the results.
    drop
        Columns to leave out.
    kind
        Format of the results.
    every
        Seconds between shards, which a killed run loses at most.
    certificates
        True to write the certificate of each row to ``certificates/`` in the folder.
    progress
        Show a progress bar with the time left on standard error.
    row
        Number of the only row to explain. None: all rows.
    wording
        Words of the sentences, and of reports about the folder.

    Raises
    ------
    OutputError
        The folder cannot be written, holds a batch with other settings, or is in use.
    TableError
        The table cannot be read, or was changed during the run.
    KeyboardInterrupt
        After the finished rows have been written.
    """
    if kind not in ("csv", "parquet"):
        raise OptionError(
            f"results are written as 'csv' or 'parquet', not {kind!r}", name="kind", value=kind
        )
    if not every > 0.0:
        raise OptionError(
            f"every must be a positive number of seconds, not {every!r}", name="every", value=every
        )
    source = open_table(table) if isinstance(table, (str, os.PathLike)) else table
    if not source.rows:
        raise TableError(
            f"{source.path}: there are column names but no rows", name=source.path.name
        )
    request = explainer.request() if request is None else request
    schema = explainer.schema_
    source.check_columns(list(schema.by_name), others=[*ids, *drop])
    for name in ids:
        if name not in source.columns:
            raise TableError(
                f"{source.path}: there is no column {name!r} to keep as an id", name=name
            )
    asked = explainer.for_request(request)
    setting = asked.setting
    layout = Layout.of(setting, ids, kind, source, wording)
    question = {
        **_about(explainer),
        "input": source.digest,
        **source.reading,
        "request": request.to_dict(),
        "id columns": list(ids),
        "format": kind,
        "certificates": certificates,
        **({} if row is None else {"row": row}),
        **({} if wording is None else {"wording": wording.to_dict()}),
    }
    span = (0, source.rows) if row is None else (row, row + 1)
    explainer.prepare_once(request, progress=progress)
    manifest = Manifest.of(question, About.of(asked.provenance(request), setting))

    def explain(missing: Sequence[Range], folder: Folder) -> None:
        rows = Rows(source, schema, missing)
        with progress_bar("explain", _number(missing), show=progress) as advance:
            parts = explainer.stream(rows, request, every=every, advance=advance)
            for part in parts:
                _write(part, rows, layout, folder)
                if not part.complete:
                    raise KeyboardInterrupt

    guarantee = asked.guarantee_
    with Folder(Path(out), kind, manifest, guarantee, certificates=certificates) as folder:
        missing = [] if folder.finished else folder.scan(span)
        resumed = _number([span]) - _number(missing)
        for _ in range(_MERGES):
            if folder.finished:
                break
            if missing:
                explain(missing, folder)
            source.check_unchanged()
            if folder.merge(layout, span):
                break
            missing = folder.scan(span)
        else:
            raise OutputError(
                f"{folder.path}: shards are damaged as soon as they are written. Check the disk, then "
                "repeat the command to resume",
                name=folder.path.name,
            )
        statuses = layout.statuses(folder.results)
        return Summary(folder.results, _number([span]), resumed, statuses, folder.quarantined)


def _number(ranges: Sequence[Range]) -> int:
    """Count the rows of some ranges."""
    return sum(stop - start for start, stop in ranges)


def _write(part: Explanations, rows: Rows, layout: Layout, folder: Folder) -> None:
    """Write results to the folder, and rows whose worker died to shards of their own kind."""
    for lost, run in itertools.groupby(part, lambda e: e.status == "worker_died"):
        answers = [rows.with_ids(e, layout.columns.ids) for e in run]
        first, last = (int(cast("int", answers[n].index)) for n in (0, -1))
        content = layout.content(answers)
        proofs = {
            proof_name(int(cast("int", e.index)), e.rank): e.certificate.to_json().encode() + b"\n"
            for e in answers
            if e.certificate is not None
        }
        folder.write("lost" if lost else "rows", first, last + 1, content, proofs)


def _about(explainer: Explainer) -> dict[str, Any]:
    """Return the settings that decide the results, apart from the rows: digests and options."""
    schema = explainer.schema_
    options = explainer.get_params(deep=False)
    for name in (
        "model",
        "schema",
        "delta",
        "required_models",
        "weights",
        "n_jobs",
    ):  # digested below, or without effect on the results
        options.pop(name, None)
    options = {name: list(v) if isinstance(v, tuple) else v for name, v in options.items()}
    return {
        "version": __version__,
        "method": type(explainer).__qualname__,
        "training rows": joblib.hash(explainer.rows_),
        "schema": joblib.hash([files.plain(part) for part in (*schema.features, *schema.rules)]),
        **_members(explainer.guarantee_),
        "weights of the distance": joblib.hash(explainer.distance_.weights),
        **options,
    }


def _members(guarantee: Guarantee) -> dict[str, Any]:
    """Return the members of the guarantee."""
    current, *others = guarantee.to_dict(joblib.hash)["members"]
    also = [
        {**facts, "margin": member.margin}
        for facts, member in zip(others, guarantee.members[1:], strict=True)
    ]
    return {
        "network": current["network"],
        "delta": current["delta"],
        "about delta": current["about"],
        **({"required_models": also} if also else {}),
    }
