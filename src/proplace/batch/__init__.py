"""Explaining a file of any size: results appear in shards, and a run goes on where one ended.

The folder of a batch holds::

    manifest.json                what was asked for (another question is refused), and what it is about
    network.npz                  the network, as certificates name it
    shifts.npz                   the set of networks, where delta is an interval for each parameter
    network-2.npz, ...           other models that must accept the answers, and their sets
    shards/rows-0...0-0...512-5e1f...ab.csv    answers of the rows from 0 up to 511, and so on
    results.csv                  all of them, once the last row is done (no shards then)

Every file appears whole or not at all, and a shard is named by the rows that it holds and by a digest.
So whatever ends a run, even ``kill -9``, loses only the rows since the last shard, and no row is there
twice; and whatever happens to a shard, it is noticed and its rows are done again.
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
    from proplace.tables.files import TableFile
    from proplace.tables.writing import Format

__all__ = ["Summary", "explain_file", "read_results"]

_MERGES = 3  # a disk that damages shards again and again is not to be waited for


@dataclass(frozen=True)
class Summary:
    """What became of a batch.

    Attributes
    ----------
    results
        The file with all answers.
    rows
        Number of people.
    resumed
        How many of them an earlier run had done.
    statuses
        Number of people by the status of their (first) answer. Those with ``worker_died`` are tried
        again when the same is asked once more.
    set_aside
        Shards that were not as they had been written, under their new names; their rows were done
        again.
    """

    results: Path
    rows: int
    resumed: int
    statuses: dict[str, int]
    set_aside: tuple[Path, ...] = ()


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
) -> Summary:
    """Explain each row of a table file, or resume an earlier run.

    Parameters
    ----------
    explainer
        A fitted explainer.
    table
        A CSV or Parquet file, or what :func:`proplace.tables.files.open_table` returns.
    out
        Folder of the batch; made if it is not there.
    request
        What is wanted: :meth:`proplace.Proplace.request`. None stands for target 1.
    ids
        Columns that are no features and are kept beside the answers.
    drop
        Columns that are left out.
    kind
        Format of the results.
    every
        Seconds between shards: about what a killed run loses.
    certificates
        Also write the proof of each answer to ``certificates/`` in the folder.
    progress
        Show a progress bar with the time left on standard error.
    row
        Number of the only row to explain; None for all rows.

    Raises
    ------
    OutputError
        The folder cannot be written, holds the batch of another question, or is in use.
    TableError
        The table cannot be read, or was changed meanwhile.
    KeyboardInterrupt
        After what was done has been written.
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
    layout = Layout.of(setting, ids, kind, source)
    question = {
        **_about(explainer),
        "input": source.digest,
        **source.reading,
        "request": request.to_dict(),
        "id columns": list(ids),
        "format": kind,
        "certificates": certificates,
        **({} if row is None else {"row": row}),
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
        missing = [] if folder.finished else folder.survey(span)
        resumed = _number([span]) - _number(missing)
        for _ in range(_MERGES):
            if folder.finished:
                break
            if missing:
                explain(missing, folder)
            source.check_unchanged()
            if folder.merge(layout, span):
                break
            missing = folder.survey(span)
        else:
            raise OutputError(
                f"{folder.path}: shards are damaged as soon as they are written; is the disk in "
                "order? what is done is kept, and the same command goes on from there",
                name=folder.path.name,
            )
        statuses = layout.statuses(folder.results)
        return Summary(folder.results, _number([span]), resumed, statuses, folder.set_aside)


def _number(ranges: Sequence[Range]) -> int:
    """Rows in some ranges."""
    return sum(stop - start for start, stop in ranges)


def _write(part: Explanations, rows: Rows, layout: Layout, folder: Folder) -> None:
    """Write answers to the folder; rows whose worker died apart, for they are tried again."""
    for lost, run in itertools.groupby(part, lambda e: e.status == "worker_died"):
        answers = [rows.told(e, layout.columns.ids) for e in run]
        first, last = (int(cast("int", answers[n].index)) for n in (0, -1))
        content = layout.content(answers)
        proofs = {
            proof_name(int(cast("int", e.index)), e.rank): e.certificate.to_json().encode() + b"\n"
            for e in answers
            if e.certificate is not None
        }
        folder.write("lost" if lost else "rows", first, last + 1, content, proofs)


def _about(explainer: Explainer) -> dict[str, Any]:
    """What decides the answers of an explainer, beside the rows: digests and options."""
    schema = explainer.schema_
    options = explainer.get_params(deep=False)
    for name in (
        "model",
        "schema",
        "delta",
        "required_models",
        "weights",
        "n_jobs",
    ):  # digested, or of no account
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
    """Return which networks must accept, and the sets they are of."""
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
