"""What all tests share: tiers, required programs and absent packages."""

from __future__ import annotations

import os

from support import absent, plugin, tiers

absent.hide()  # before any test module is imported
tiers.profiles()

# Outputs must not depend on the width or the colours of the terminal that runs the tests.
os.environ.update(COLUMNS="120", LINES="40")
for _variable in ("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TERMINAL_WIDTH"):
    os.environ.pop(_variable, None)


def pytest_configure(config):
    config.pluginmanager.register(plugin)  # for the doctests in src, too
