"""Long work: signals that end it, and the cluster that it runs on."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from proplace.cli.console import tell

if TYPE_CHECKING:
    from collections.abc import Iterator


class Backend(StrEnum):
    """Places that rows are explained on."""

    loky = "loky"
    dask = "dask"
    ray = "ray"


@contextmanager
def stop_on_signal() -> Iterator[None]:
    """End a batch on SIGTERM and SIGHUP as on Ctrl-C: finished rows are saved first.

    A second signal ends the process at once. Ignored signals, as under nohup, stay ignored.
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
        yield
    except KeyboardInterrupt:
        tell("interrupted. Repeat the command to resume")
        raise typer.Exit(128 + (came or [signal.SIGINT])[0]) from None
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def cluster(backend: str | None, address: str | None, jobs: int | None) -> Iterator[None]:
    """Make joblib use the processes of this machine, a Dask cluster or a Ray cluster."""
    import joblib  # noqa: PLC0415  (quick help)

    from proplace.core.errors import OptionError, WorkerError, require  # noqa: PLC0415

    processes = None if jobs is None else int(joblib.effective_n_jobs(jobs))
    if backend in (None, Backend.loky):
        if address is not None:
            raise OptionError(
                "batch.address needs --backend dask or --backend ray",
                name="batch.address",
                value=address,
            )
        yield
    elif backend == Backend.dask:
        distributed = require("distributed", "dask", "the Dask backend")
        local = {"n_workers": processes, "threads_per_worker": 1, "dashboard_address": None}
        try:
            client = distributed.Client(address, **({} if address else local))
        except (OSError, ValueError) as error:
            raise WorkerError(
                f"no Dask scheduler answers at {address} ({error})",
                name="batch.address",
                value=address,
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
                f"no Ray cluster answers at {address} ({error})",
                name="batch.address",
                value=address,
            ) from error
        require("ray.util.joblib", "ray", "the Ray backend").register_ray()
        try:
            with joblib.parallel_config("ray", n_jobs=jobs or -1):
                yield
        finally:
            ray.shutdown()
