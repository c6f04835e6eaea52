"""The command line as a shell runs it."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from proplace.apps.cli import main


def run(*words, timeout=120, **environment):
    """Run ``python -m proplace`` with some words."""
    return subprocess.run(
        [sys.executable, "-m", "proplace", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env={**os.environ, "COLUMNS": "120", **environment},
    )


def run_on_a_terminal(*words, timeout=120, **environment):
    """Do the same on a terminal with colours: both outputs go to it, in the order of writing."""
    ours, theirs = pty.openpty()
    colours = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "FORCE_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "proplace", *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "200", **colours, **environment},
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(ours, 65_536):
            shown += part
    os.close(ours)
    return process.wait(timeout), shown.decode()


def run_quickly(*words, timeout=120):
    """Do the same in a process whose imports are already made: for long tables of small cases."""
    context = multiprocessing.get_context("forkserver")
    preloaded = ["proplace.apps.cli", "proplace.apps.batch", "proplace.explain.proplace", "onnx"]
    context.set_forkserver_preload(preloaded)
    words = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=_main, args=(words, folder))
        process.start()
        process.join(timeout)
        assert process.exitcode is not None, f"{words} hangs"
        out, err = ((Path(folder) / name).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(words, process.exitcode, out, err)


def call(*words):
    """Do the same within this process: the quickest, where models are at hand in memory."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    words = [str(word) for word in words]
    redirected = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with redirected[0], redirected[1], mock.patch("sys.argv", ["proplace", *words]):
        try:
            main()
        except SystemExit as end:
            status = end.code
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return subprocess.CompletedProcess(words, status, *texts)


def _main(words, folder):
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT), number)
    os.environ["COLUMNS"] = "120"
    sys.argv = ["proplace", *words]
    main()
