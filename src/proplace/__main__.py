"""Run the command line with ``python -m proplace``."""

from proplace.cli import main

main()
