"""The command line: one module per command, put together in `app`."""

from proplace.cli.app import app, main

__all__ = ["app", "main"]
