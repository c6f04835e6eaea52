"""`proplace explain`."""

from __future__ import annotations

import json
import signal
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path  # noqa: TC003  (typer reads it at run time)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.cli import common
from proplace.cli.console import say, say_table, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from proplace.batch import Summary
    from proplace.explanations import Explanation, Explanations
    from proplace.schema import Schema
    from proplace.table_files import TableFile


class Region(StrEnum):
    """Names of regions."""

    hull = "hull"
    box = "box"


class Backend(StrEnum):
    """Where the rows are explained."""

    loky = "loky"
    dask = "dask"
    ray = "ray"


def explain(
    model: common.Model,
    train: common.Train,
    delta: common.Delta,
    person: Annotated[
        list[str] | None, typer.Argument(help="One person as name=value pairs.", show_default=False)
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--input", help="CSV or Parquet file with the people.")
    ] = None,
    row: Annotated[
        int | None, typer.Option(help="Explain this row of the input alone; the first is 0.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results of a whole input, where a killed run goes on, and for "
            "--certificates."
        ),
    ] = None,
    schema: common.SchemaFile = None,
    target: common.Target = "1",
    count: Annotated[int, typer.Option(help="Answers for each person, each changing else.")] = 1,
    k: Annotated[int, typer.Option("--k", help="Robust neighbours that span the region.")] = 20,
    distance: Annotated[
        common.Distance, typer.Option(help="What near means.")
    ] = common.Distance.l1,
    region: Annotated[
        Region, typer.Option(help="hull: plausible answers; box: anywhere within the ranges.")
    ] = Region.hull,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds for one person; the best answer so far is given.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processes; -1: as many as there are processors.")
    ] = None,
    backend: Annotated[
        Backend, typer.Option(help="Where: this machine or a cluster.")
    ] = Backend.loky,
    address: Annotated[
        str | None,
        typer.Option(help="Of the Dask scheduler or the Ray cluster; else one is made here."),
    ] = None,
    ids: common.Ids = None,
    drop: common.Drop = None,
    certificates: Annotated[
        bool,
        typer.Option("--certificates", help="Also write a proof for each answer (see: check)."),
    ] = False,
    kind: Annotated[
        common.FileFormat | None,
        typer.Option("--format", help="Of the results; else that of the input."),
    ] = None,
    every: Annotated[
        float, typer.Option(help="Seconds between shards: what a killed run loses at most.")
    ] = 5.0,
    delimiter: common.Delimiter = ",",
    encoding: common.Encoding = "utf-8",
    assume: common.Assume = None,
    as_json: common.Json = False,
) -> None:
    """Find the nearest plausible input that every network within delta accepts.

    A whole --input goes to the folder --out: answers in results.csv, one line each, people without
    one with the reason. A run that was killed goes on when the same command is given again. One
    person (--row, or name=value pairs) is shown; only --certificates are written to --out then.

    [bold]Examples[/bold]

    proplace explain --model m.onnx --train train.csv --delta 0.02 --input people.csv --out results

    proplace explain --model m.onnx --train train.csv --delta 0.02 --input people.csv --row 7 --json

    proplace explain --model m.onnx --train train.csv --schema schema.yaml --delta 0.02 age=40 job=cook
    """
    from proplace.batch import explain_file  # noqa: PLC0415
    from proplace.errors import OptionError  # noqa: PLC0415
    from proplace.explainer import Proplace  # noqa: PLC0415
    from proplace.table_files import open_table  # noqa: PLC0415

    pairs = _pairs(person or [])
    if bool(pairs) == (table is not None):
        raise OptionError("give the people as --input FILE, or one person as name=value pairs")
    if row is not None and table is None:
        raise OptionError("--row needs --input FILE")
    single = bool(pairs) or row is not None
    if out is None and (certificates or not single):
        raise OptionError(f"{'--certificates' if single else '--input'} needs --out FOLDER")
    if out is not None and single and not certificates:
        raise OptionError("one person is shown, not written to --out, unless with --certificates")
    jobs = common.processes(jobs)
    whole = common.read_model(model, assume)
    common.positive_delta(delta)
    others = [*(ids or []), *(drop or [])]
    rows = open_table(train, delimiter=delimiter, encoding=encoding)
    whole = common.with_names(whole, schema, rows, others)
    features, label = whole.schema, common.target_of(whole, target)
    source = None if table is None else open_table(table, delimiter=delimiter, encoding=encoding)
    explainer = Proplace(
        whole,
        delta,
        k=k,
        distance=distance.value,
        region=region.value,
        n_jobs=jobs if backend is Backend.loky else None,
        time_limit=time_limit,
    )
    explainer.fit(common.training_rows(rows, features, others))
    if source is None or row is not None:
        someone = _person(source, row, pairs, features, others)
        answers = explainer.explain(someone, label, count=count)
        if out is not None:
            _save_certificates(answers, out / "certificates")
        _show(answers, features, as_json=as_json)
        return
    with _ended() as signals:
        try:
            with _cluster(backend, address, jobs):
                summary = explain_file(
                    explainer,
                    source,
                    out or "",
                    target=label,
                    count=count,
                    ids=ids or (),
                    drop=drop or (),
                    kind=_format(kind, source),
                    every=every,
                    certificates=certificates,
                    progress=common.watched(),
                )
        except KeyboardInterrupt:
            tell("interrupted; the same command goes on where this one ended")
            raise typer.Exit(128 + (signals or [signal.SIGINT])[0]) from None
    _summarise(summary, as_json=as_json)


# -- one person ------------------------------------------------------------------------------------


def _pairs(words: list[str]) -> dict[str, str]:
    """Read name=value pairs."""
    from proplace.errors import OptionError  # noqa: PLC0415

    pairs: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or name in pairs:
            what = "occurs twice" if sign else "is not of the form name=value"
            raise OptionError(f"{word!r} {what}")
        pairs[name] = value
    return pairs


def _person(
    source: TableFile | None,
    row: int | None,
    pairs: dict[str, str],
    schema: Schema,
    others: list[str],
) -> pd.DataFrame:
    """One person as a table of one row, from the command line or from a file."""
    import pandas as pd  # noqa: PLC0415

    from proplace.errors import InputError, SchemaError  # noqa: PLC0415
    from proplace.schema._model import did_you_mean  # noqa: PLC0415
    from proplace.table_files import typed_text  # noqa: PLC0415

    if source is not None:
        source.check_columns(list(schema.by_name), others=others)
        frame, broken = source.row(schema, row or 0)
        problems = [*broken.values(), *schema.problems(frame).values()]
    else:
        for name in pairs:
            if name not in schema.by_name:
                hint = did_you_mean(name, schema.by_name)
                raise SchemaError(f"{name!r} is not a feature{hint}")
        missing = [name for name in schema.by_name if name not in pairs]
        if missing:
            raise SchemaError(f"no value for {', '.join(map(repr, missing))}")
        frame = pd.DataFrame(
            {
                name: typed_text(pd.Series([pairs[name]]), schema.by_name[name])
                for name in schema.by_name
            }
        )
        problems = [text.removeprefix("row 0, ") for text in schema.problems(frame).values()]
    if problems:
        raise InputError(problems[0])
    return frame


def _save_certificates(result: Explanations, folder: Path) -> None:
    """Write the proofs for one person, none in the place of another file."""
    from proplace.batch.shards import proof_name  # noqa: PLC0415
    from proplace.errors import OutputError  # noqa: PLC0415

    if (folder.parent / "manifest.json").exists():
        raise OutputError(f"{folder.parent}: holds a batch; give another folder for one person")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made ({error.strerror})") from error
    proofs = {folder / proof_name(int(str(e.index)), e.rank): e.certificate for e in result}
    for path, proof in proofs.items():
        if proof is not None:
            with common.refused_if_there(path):
                proof.save(path)


def _show(result: Explanations, schema: Schema, *, as_json: bool) -> None:
    """Print the answers for one person."""
    if as_json:
        typer.echo(json.dumps([_facts(answer, schema) for answer in result], indent=2))
        return
    for answer in result:
        if not answer.found:
            say(f"{answer.status}: {answer.reason}")
            continue
        rows = []
        for name, change in _facts(answer, schema)["changes"].items():
            feature = schema.by_name[name]
            unit = getattr(feature, "unit", None)
            words = [f"{change[key]}{f' {unit}' if unit else ''}" for key in ("from", "to")]
            rows.append([feature.title, *words])
        say_table(["feature", "now", "then"], rows)
        say(
            f"{answer.status}; distance {answer.distance:.6g}; every network within delta reaches "
            f"class {answer.target} by at least {answer.margin:.3g}"
        )
        if answer.reason:
            say(answer.reason)


def _facts(answer: Explanation, schema: Schema) -> dict[str, Any]:
    """Everything about an answer that JSON can hold."""
    import math  # noqa: PLC0415

    from proplace.table_files import plain  # noqa: PLC0415

    def values(series: pd.Series[Any] | None) -> dict[str, Any] | None:
        if series is None:
            return None
        return {name: plain(series[name], feature) for name, feature in schema.by_name.items()}

    before, after = values(answer.original), values(answer.counterfactual)
    numbers = {name: getattr(answer, name) for name in ("distance", "bound", "margin")}
    return {
        "status": answer.status,
        "reason": answer.reason,
        "target": answer.target,
        "rank": answer.rank,
        **{name: None if math.isnan(value) else value for name, value in numbers.items()},
        "original": before,
        "counterfactual": after,
        "changes": {
            name: {"from": before[name], "to": after[name]}
            for name in schema.by_name
            if before[name] != after[name]
        }
        if before is not None and after is not None
        else {},
    }


# -- a whole input ---------------------------------------------------------------------------------


def _format(kind: common.FileFormat | None, source: TableFile) -> Any:
    from proplace.table_files import is_parquet  # noqa: PLC0415

    if kind is not None:
        return kind.value
    return "parquet" if is_parquet(source.path) else "csv"


def _summarise(summary: Summary, *, as_json: bool) -> None:
    from proplace.errors import WorkerError  # noqa: PLC0415

    for path in summary.set_aside:
        common.note(
            f"{path}: this shard (or a proof that belongs to it) was not as it had been written; it "
            "is set aside, and its rows were done again"
        )
    if as_json:
        facts = {
            "results": str(summary.results),
            "rows": summary.rows,
            "resumed": summary.resumed,
            "statuses": summary.statuses,
        }
        typer.echo(json.dumps(facts))
    elif common.watched():
        parts = ", ".join(f"{number} {status}" for status, number in summary.statuses.items())
        before = f" ({summary.resumed} were done before)" if summary.resumed else ""
        tell(f"{summary.results}: {summary.rows} people{before}: {parts}")
    if lost := summary.statuses.get("worker_died", 0):
        raise WorkerError(
            f"{summary.results}: {lost} of {summary.rows} people have no answer because the process "
            "died each time (status worker_died), as if killed or out of memory; the same command "
            "tries them again, and fewer --jobs need less memory"
        )


@contextmanager
def _ended() -> Iterator[list[int]]:
    """Let SIGTERM and SIGHUP end a batch as Ctrl-C does: what is done is written.

    Yields a list for the signal that came. A second one ends the process at once. Signals that are
    ignored, as under nohup, stay ignored.
    """
    came: list[int] = []

    def end(number: int, _: object) -> None:
        came.append(number)
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield came
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def _cluster(backend: Backend, address: str | None, jobs: int | None) -> Iterator[None]:
    """Make joblib use the processes of this machine, a Dask cluster or a Ray cluster."""
    import joblib  # noqa: PLC0415

    from proplace.errors import OptionError, WorkerError  # noqa: PLC0415
    from proplace.optional import require  # noqa: PLC0415

    processes = None if jobs is None else int(joblib.effective_n_jobs(jobs))
    if backend is Backend.loky:
        if address is not None:
            raise OptionError("--address needs --backend dask or --backend ray")
        yield
    elif backend is Backend.dask:
        distributed = require("distributed", "dask", "the Dask backend")
        local = {"n_workers": processes, "threads_per_worker": 1, "dashboard_address": None}
        try:
            client = distributed.Client(address, **({} if address else local))
        except (OSError, ValueError) as error:
            raise WorkerError(f"no Dask scheduler answers at {address} ({error})") from error
        with client, joblib.parallel_config("dask"):
            yield
    else:
        ray = require("ray", "ray", "the Ray backend")
        local = {"num_cpus": processes, "include_dashboard": False}
        try:
            ray.init(
                address or "local",
                log_to_driver=False,
                logging_level="ERROR",
                **({} if address else local),
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise WorkerError(f"no Ray cluster answers at {address} ({error})") from error
        require("ray.util.joblib", "ray", "the Ray backend").register_ray()
        try:
            with joblib.parallel_config("ray", n_jobs=jobs or -1):
                yield
        finally:
            ray.shutdown()
