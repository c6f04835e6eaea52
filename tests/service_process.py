"""A service in a process of its own, as ``proplace serve`` starts it, for tests that talk or kill."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import httpx
import psutil
import yaml

import small_promises as small
from proplace.apps.serve.store import Store
from proplace.client import Client

WORDS = {"subject": "the loan", "outcomes": ["refused", "approved"], "person": "applicant"}


def write_config(folder, **limits):
    """Files of the small lender, and a configuration that serves it."""
    small.NET.save(folder / "model.npz")
    small.SCHEMA.write(folder / "schema.yaml")
    small.TRAINING.to_csv(folder / "train.csv", index=False)
    served = {
        "model": "model.npz", "train": "train.csv", "schema": "schema.yaml", "delta": 0.01,
        "words": WORDS,
    }  # fmt: skip
    facts = {
        "models": {"loans": served},
        "ledger": "promises.db",
        "state": "serve.db",
        "port": 0,
        "limits": {"workers": 1, "requests": 100_000, "niceness": 0, **limits},
    }
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump(facts))
    return path


class Running:
    """A service that runs, can be killed, and started again on the same port."""

    def __init__(self, config):
        self.config, self.folder = config, config.parent
        self.process, self.port, self._family = None, 0, []
        self.start()

    def start(self):
        """Start it, and wait until it answers."""
        facts = yaml.safe_load(self.config.read_text()) | {"port": self.port}
        self.config.write_text(yaml.safe_dump(facts))
        log = (self.folder / "log.txt").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "proplace", "serve", "--config", self.config],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            cwd=self.folder,
        )
        log.close()
        end = time.monotonic() + 60
        while not self._answers():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.05)

    def _answers(self):
        found = re.findall(r"serving .* on http://127\.0\.0\.1:(\d+)", self.log)
        if not found:
            return False
        self.port = int(found[-1])
        try:
            return httpx.get(f"{self.url}/api/v1/health", trust_env=False).is_success
        except httpx.TransportError:
            return False

    @property
    def log(self):
        """All that it has said."""
        path = self.folder / "log.txt"
        return path.read_text() if path.exists() else ""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def key(self, name, role="admin"):
        """Make a key."""
        store = Store(self.folder / "serve.db")
        try:
            return store.add_key(name, role)
        finally:
            store.close()

    def client(self, name="test", role="admin", **options):
        """Make a key and a client that uses it."""
        return Client(self.url, self.key(name, role), **options)

    def health(self):
        """What it says about itself."""
        return httpx.get(f"{self.url}/api/v1/health", trust_env=False).json()

    def workers(self):
        """Processes that search."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            try:
                if "spawn_main" in " ".join(child.cmdline()):
                    found.append(child)
            except psutil.Error:
                continue
        return found

    def kill(self):
        """End it as a power cut would, and return the processes that were its own."""
        family = self.workers()
        self.process.kill()
        self.process.wait()
        return family

    def stop(self, number=signal.SIGTERM):
        """End it in good order, and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)
