"""A real browser for tests of pages, which are skipped where there is none."""

from __future__ import annotations

import re
import shutil
import subprocess

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NO_BROWSER = "Chromium is not installed"


def chromium(folder, *arguments):
    """Run the browser once, without a window and with an empty profile: its output, its console."""
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--allow-file-access-from-files",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            "--virtual-time-budget=20000",
            f"--user-data-dir={folder}",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)
