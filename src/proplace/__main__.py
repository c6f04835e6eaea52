"""Run the command line with ``python -m proplace``."""

from proplace.cli import app

app(prog_name="proplace")
