"""`proplace explain` of a whole input: a folder of results, signals, clusters, the summary."""

from __future__ import annotations

import json
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from proplace.cli import common
from proplace.cli.console import tell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from proplace.batch import Summary
    from proplace.core.request import Request
    from proplace.explain.proplace import Proplace
    from proplace.tables.files import TableFile


class Backend(StrEnum):
    """Where the rows are explained."""

    loky = "loky"
    dask = "dask"
    ray = "ray"


@dataclass(frozen=True)
class Batch:
    """How a whole input is explained.

    Attributes
    ----------
    out
        The folder of the results.
    ids, drop
        Columns that are kept beside the answers, and those that are left out.
    certificates
        Whether proofs are kept.
    kind
        Format of the results; None: that of the input.
    every
        Seconds between shards.
    backend, address, jobs
        Where the rows are explained.
    """

    out: Path
    ids: list[str]
    drop: list[str]
    certificates: bool
    kind: common.FileFormat | None
    every: float
    backend: Backend
    address: str | None
    jobs: int | None

    def run(self, explainer: Proplace, source: TableFile, request: Request) -> Summary:
        """Explain all rows, or go on with them; a signal ends it as Ctrl-C does."""
        from proplace.batch import explain_file  # noqa: PLC0415

        with _ended() as signals:
            try:
                with _cluster(self.backend, self.address, self.jobs):
                    return explain_file(
                        explainer,
                        source,
                        self.out,
                        request,
                        ids=self.ids,
                        drop=self.drop,
                        kind=_format(self.kind, source),
                        every=self.every,
                        certificates=self.certificates,
                        progress=common.watched(),
                    )
            except KeyboardInterrupt:
                tell("interrupted; the same command goes on where this one ended")
                raise typer.Exit(128 + (signals or [signal.SIGINT])[0]) from None


def _format(kind: common.FileFormat | None, source: TableFile) -> Any:
    from proplace.tables.files import is_parquet  # noqa: PLC0415

    if kind is not None:
        return kind.value
    return "parquet" if is_parquet(source.path) else "csv"


def summarise(summary: Summary, agreement: dict[str, Any], *, as_json: bool) -> None:
    """Say what became of a batch; people without an answer yet are an error."""
    from proplace.core.errors import WorkerError  # noqa: PLC0415

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
            **agreement,
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
            "tries them again, and fewer --jobs need less memory",
            name=summary.results.name,
            value=lost,
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

    from proplace.core.errors import OptionError, WorkerError, require  # noqa: PLC0415

    processes = None if jobs is None else int(joblib.effective_n_jobs(jobs))
    if backend is Backend.loky:
        if address is not None:
            raise OptionError(
                "--address needs --backend dask or --backend ray", name="--address", value=address
            )
        yield
    elif backend is Backend.dask:
        distributed = require("distributed", "dask", "the Dask backend")
        local = {"n_workers": processes, "threads_per_worker": 1, "dashboard_address": None}
        try:
            client = distributed.Client(address, **({} if address else local))
        except (OSError, ValueError) as error:
            raise WorkerError(
                f"no Dask scheduler answers at {address} ({error})", name="--address", value=address
            ) from error
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
            raise WorkerError(
                f"no Ray cluster answers at {address} ({error})", name="--address", value=address
            ) from error
        require("ray.util.joblib", "ray", "the Ray backend").register_ray()
        try:
            with joblib.parallel_config("ray", n_jobs=jobs or -1):
                yield
        finally:
            ray.shutdown()
