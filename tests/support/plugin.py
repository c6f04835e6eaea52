"""Hooks of pytest: skips of absent packages, required programs, tiers, and processor times.

``PROPLACE_REQUIRE=chromium,postgres,node`` lets a test fail that would skip without one of them.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from support import absent

LIMIT = 2.0
"""Processor seconds that a test may use without the mark ``slow``."""

REASONS = {
    "chromium": r"chromium|playwright|axe.core",
    "postgres": r"postgresql|psycopg",
    "node": r"node",
}
REQUIRED = [REASONS[name] for name in os.environ.get("PROPLACE_REQUIRE", "").split(",") if name]


# -- skips ---------------------------------------------------------------------------------------


def _judged(report, call, path):
    """Skip without a package. Fail without a required program."""
    package = absent.missing(call.excinfo.value) if report.failed and call.excinfo else None
    if package is not None:
        report.outcome = "skipped"
        report.longrepr = (str(path), 0, f"Skipped: the package {package} is not installed")
        for name, module in list(sys.modules.items()):  # pytest keeps a module that failed halfway
            if getattr(module, "__file__", None) == str(path):
                del sys.modules[name]
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if any(re.search(rf"\b({pattern})\b", reason, re.I) for pattern in REQUIRED):
            report.outcome = "failed"
            report.longrepr = f"PROPLACE_REQUIRE does not allow this. {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return _judged(report, report.call, collector.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return _judged((yield), call, item.path)


# -- tiers ---------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark all but every n-th case of a test with the mark ``every(n)`` as slow."""
    cases = Counter()
    for item in items:
        mark = item.get_closest_marker("every")
        if mark is not None:
            test = item.nodeid.partition("[")[0]
            if cases[test] % mark.args[0] > 0:
                item.add_marker("slow")
            cases[test] += 1


# -- processor times -----------------------------------------------------------------------------


def _ticks(pid):
    """Return the processor ticks of a running process, its ended children and its descendants."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) + _descendants(pid)
    except (OSError, IndexError):  # the process ended
        return 0


def _descendants(pid):
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return sum(_ticks(child) for children in found for child in children)


def _cpu():
    """Return the processor seconds of this process and its children so far."""
    try:
        running = _descendants(os.getpid()) / os.sysconf("SC_CLK_TCK")
    except OSError:
        running = 0.0
    return sum(os.times()[:4]) + running


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    item.cpu = _cpu()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    fixtures = _cpu() - item.cpu
    try:
        return (yield)
    finally:
        seconds = _cpu() - item.cpu
        item.user_properties += [("cpu", f"{seconds:.2f}"), ("cpu of fixtures", f"{fixtures:.2f}")]


def pytest_terminal_summary(terminalreporter):
    """List the unmarked tests above the limit."""
    found = []
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        if report.when == "call" and "slow" not in report.keywords:
            times = dict(report.user_properties)
            found.append((float(times.get("cpu", 0)), times.get("cpu of fixtures"), report.nodeid))
    found = sorted((one for one in found if one[0] > LIMIT), reverse=True)
    if found:
        terminalreporter.section(f"tests above {LIMIT:g} processor seconds without the mark slow")
    for seconds, fixtures, name in found:
        terminalreporter.line(f"{seconds:6.2f} s ({fixtures} s in fixtures) {name}")
