"""Run the command line with ``python -m proplace``."""

from proplace.apps.cli import main

main()
