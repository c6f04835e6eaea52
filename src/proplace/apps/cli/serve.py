"""`proplace serve`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proplace.apps.cli.console import say, tell

if TYPE_CHECKING:
    from proplace.apps.serve.config import Config
    from proplace.apps.serve.store import Store

serve = typer.Typer(help="The service: an HTTP interface and a page.", invoke_without_command=True)
keys = typer.Typer(help="Keys of the service: who may do what.", no_args_is_help=True)
serve.add_typer(keys, name="keys")

_STATE = Path("serve.db")
KeysState = Annotated[
    Path | None,
    typer.Option(help="The SQLite file of keys, sessions and jobs; left out: serve.db."),
]
KeysConfig = Annotated[
    Path | None, typer.Option(help="In place of --state: the YAML file of the service.")
]


@serve.callback()
def run(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file with models, ledger and limits.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="The model to serve.")] = None,
    train: Annotated[Path | None, typer.Option(help="Its training rows.")] = None,
    schema: Annotated[Path | None, typer.Option(help="Its schema file.")] = None,
    delta: Annotated[float | None, typer.Option(help="Largest change of any parameter.")] = None,
    shifts: Annotated[
        Path | None, typer.Option(help="In place of --delta: a set of networks.")
    ] = None,
    target: Annotated[str, typer.Option(help="The wanted class, by its label.")] = "1",
    people: Annotated[Path | None, typer.Option(help="People who can be looked up.")] = None,
    ids: Annotated[str | None, typer.Option(help="The column with their ids.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Columns that are no features.")] = None,
    ledger: Annotated[str | None, typer.Option(help="File or URL of the ledger.")] = None,
    state: Annotated[
        Path, typer.Option(help="The SQLite file of keys, sessions and jobs.")
    ] = _STATE,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port to listen on, also in place of that of --config; 0: any."
        ),
    ] = 8765,
    hosts: Annotated[
        list[str] | None, typer.Option(help="A name by which others may call it; may be repeated.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that search.")] = 2,
) -> None:
    """Serve models: an HTTP interface and a page.

    Without any option the model of the demonstration is served. It listens on this machine alone;
    another address is refused unless there are keys (proplace serve keys add).

    [bold]Examples[/bold]

    proplace serve

    proplace serve --model m.onnx --train train.csv --schema schema.yaml --delta 0.02
    --ledger promises.db
    """
    if context.invoked_subcommand is not None:
        return
    from proplace.apps.serve.config import config_of, read_config  # noqa: PLC0415  (quick help)
    from proplace.core.errors import OptionError  # noqa: PLC0415

    if config is not None:
        _only(context, ("config", "port"), "with --config, say it in the file")
        found = read_config(config)
        if _given(context, "port"):
            found = found.model_copy(update={"port": port})
    elif model is not None:
        if train is None:
            raise OptionError("--model needs its training rows: --train FILE")
        served: dict[str, Any] = {
            "model": model, "train": train, "schema": schema, "delta": delta, "shifts": shifts,
            "target": target, "people": people, "ids": ids, "drop": drop or [],
        }  # fmt: skip
        found = config_of(
            {
                "models": {re.sub(r"[^\w.-]", "-", model.stem): served},
                "ledger": ledger or "promises.db", "state": state, "host": host, "port": port,
                "hosts": hosts or [], "limits": {"workers": workers},
            }
        )  # fmt: skip
    else:
        from proplace.apps.serve.demo import demo_config  # noqa: PLC0415

        _only(context, ("host", "port", "hosts", "workers", "ledger"), "it needs --model FILE")

        found = demo_config(host=host, port=port, workers=workers, ledger=ledger)
        found = found.model_copy(update={"hosts": tuple(hosts or ())})
    _serve(found)


def _only(context: typer.Context, names: tuple[str, ...], instead: str) -> None:
    """Refuse options that would have no effect."""
    from proplace.core.errors import OptionError  # noqa: PLC0415  (quick help)

    for name in context.params:
        if name not in names and _given(context, name):
            raise OptionError(f"--{name} would have no effect: {instead}")


def _given(context: typer.Context, name: str) -> bool:
    """Whether an option was given, and does not have its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _serve(config: Config) -> None:
    """Listen until it is stopped."""
    from proplace.apps.serve.running import serve_forever  # noqa: PLC0415

    serve_forever(config, tell)


@keys.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Whose key it is.")],
    role: Annotated[str, typer.Option(help="reader, caseworker, auditor or admin.")] = "reader",
    state: KeysState = None,
    config: KeysConfig = None,
) -> None:
    """Make a key and print it: this once."""
    from proplace.apps.serve.store import Store  # noqa: PLC0415

    path = _state(state, config)
    new = not path.exists()
    store = Store(path)
    if new:
        tell(f"{path}: made, a new state file")
    say(store.add_key(name, role))


@keys.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="Whose key it is.")],
    state: KeysState = None,
    config: KeysConfig = None,
) -> None:
    """End a key and its sessions."""
    _store(state, config).revoke_key(name)


@keys.command("list")
def list_keys(state: KeysState = None, config: KeysConfig = None) -> None:
    """All keys, without secrets."""
    for key in _store(state, config).all_keys():
        ended = "" if key["revoked"] is None else " (revoked)"
        say(f"{key['name']}: {key['role']}{ended}")


def _state(state: Path | None, config: Path | None) -> Path:
    """The state file, as it was named or as the configuration names it."""
    from proplace.apps.serve.config import read_config  # noqa: PLC0415  (quick help)
    from proplace.core.errors import OptionError  # noqa: PLC0415

    if config is None:
        return _STATE if state is None else state
    if state is not None:
        raise OptionError("give --state or --config, and not both: the configuration names a state")
    return read_config(config).state


def _store(state: Path | None, config: Path | None) -> Store:
    """The state file, opened; it must be there."""
    from proplace.apps.serve.store import Store  # noqa: PLC0415  (quick help)
    from proplace.core.errors import OptionError  # noqa: PLC0415

    path = _state(state, config)
    if not path.is_file():
        raise OptionError(
            f"{path}: there is no such state file; name that of the service with --state FILE, or its "
            "configuration with --config FILE"
        )
    return Store(path)
