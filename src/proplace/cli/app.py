"""The `proplace` command: its commands, the options of all of them, and the printing of errors.

Exit status: 0 done, 1 an error (one sentence on standard error), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from proplace import __version__
from proplace.cli.audit import audit
from proplace.cli.calibrate import calibrate
from proplace.cli.certify import certify
from proplace.cli.check import check
from proplace.cli.console import echo, set_quiet, tell
from proplace.cli.demo import demo
from proplace.cli.experiment import experiment
from proplace.cli.explain import explain
from proplace.cli.ledger import ledger
from proplace.cli.report import report
from proplace.cli.schema import schema
from proplace.cli.serve import serve
from proplace.core.errors import ProplaceError

STATUSES = {
    0: "Done. check, audit, ledger verify: everything is accepted.",
    1: "An error (one sentence on standard error), or a check that failed.",
    2: "Wrong usage.",
    3: "audit: the release gate is closed. ledger redeem: the promise is not met.",
    4: "ledger redeem: the promise is broken.",
    130: "Interrupted; 128 + N after the signal N.",
}
"""Exit statuses and their meaning."""

app = typer.Typer(
    no_args_is_help=True,
    help="Counterfactuals with a proof that they survive small changes to the model.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(explain)
app.command()(certify)
app.command()(check)
app.command()(report)
app.command()(audit)
app.command()(calibrate)
app.command()(schema)
app.command()(experiment)
app.command()(serve)
app.add_typer(ledger, name="ledger")


def _version(show: bool) -> None:
    if show:
        echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print no progress (anywhere in the line).")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Print where an error comes from (anywhere in the line)."),
    ] = False,
) -> None:
    """Counterfactuals with a proof that they survive small changes to the model.

    Exit status: 0 done, 1 an error (one sentence on standard error), 2 wrong usage, 130 interrupted.
    """


def main() -> None:
    """Run the command line. An error is one sentence and exit status 1."""
    debug = "--debug" in sys.argv[1:]
    set_quiet("--quiet" in sys.argv[1:])
    arguments = [word for word in sys.argv[1:] if word not in ("--debug", "--quiet")]
    try:
        # errors of usage come here as well, so that one place prints all errors
        status: Any = app(arguments, prog_name="proplace", standalone_mode=False)
    except Exception as error:
        if debug:
            raise
        status = _report(error)
    sys.exit(status if isinstance(status, int) else 0)


def _report(error: Exception) -> int:
    """Print an error as one sentence, and return the exit status."""
    if isinstance(error, typer.Abort):
        tell("interrupted")
        return 130 if isinstance(error.__cause__, KeyboardInterrupt) else 1
    usage: Any = error  # from typer's own copy of click, or from click in older versions
    if hasattr(usage, "format_message") and hasattr(usage, "exit_code"):
        if type(error).__name__ != "NoArgsIsHelpError":  # it has printed the help
            words = " ".join(str(usage.format_message()).split()).rstrip(".")
            command = getattr(getattr(usage, "ctx", None), "command_path", "proplace")
            tell(f"error: {words}. See: {command} --help")
        return int(usage.exit_code)
    tell(f"error: {_sentence(error)}")
    for line in error.code if isinstance(error, ProplaceError) else ():
        tell(f"    {line}")
    return 1


def _sentence(error: Exception) -> str:
    if isinstance(error, ProplaceError):
        return str(error.args[0])
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    words = " ".join(str(error).split())
    return f"something unexpected happened ({type(error).__name__}: {words}). See --debug"
