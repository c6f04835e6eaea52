"""A PostgreSQL server of the tests' own: its files and its socket in a folder that is removed again."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from support.clocks import PATIENCE


def binaries():
    """Folder of the server's programs; None where there are none."""
    told = shutil.which("pg_config")
    places = [Path(found).parent for name in ("postgres",) if (found := shutil.which(name))]
    if told:
        run = subprocess.run([told, "--bindir"], capture_output=True, text=True, check=False)
        places.append(Path(run.stdout.strip()))
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((p for p in places if (p / "initdb").exists() and (p / "postgres").exists()), None)


def _user():
    """Whom to run it as: PostgreSQL refuses to be run by root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL is not run as root, and there is no user postgres or nobody")


class Server:
    """A server that runs."""

    def __init__(self, folder):
        self.folder = folder

    @property
    def files(self):
        """Folder of the tables' files; what the server keeps of its write-ahead log is elsewhere."""
        return self.folder / "data" / "base"

    def url(self, database, user="tester"):
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def new(self):
        """URL of a new, empty database."""
        name = f"ledger_{uuid.uuid4().hex}"
        self.execute("postgres", f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, database, *statements):
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)


@contextlib.contextmanager
def running():
    """Start a server; skip the test where there is none to start."""
    place = binaries()
    if place is None:
        pytest.skip("PostgreSQL is not installed here (Debian: apt install postgresql)")
    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="proplace-pg-"))
    process = None
    try:
        if user:
            os.chown(folder, user["user"], user["group"])
        told = {"capture_output": True, "text": True, "cwd": folder, **user}
        made = subprocess.run(
            [place / "initdb", "--no-sync", "-A", "trust", "-U", "tester", "-D", folder / "data"],
            check=False,
            **told,
        )
        assert made.returncode == 0, made.stderr
        options = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "autovacuum=off"]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [place / "postgres", "-D", folder / "data", "-k", folder, *options],
                stdout=log,
                stderr=log,
                cwd=folder,
                **user,
            )
        server = Server(folder)
        _wait(server, process)
        yield server
    finally:
        if process is not None:
            process.send_signal(signal.SIGQUIT)  # at once; nothing of it is needed again
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server, process):
    import psycopg

    end = time.monotonic() + PATIENCE
    while True:
        assert process.poll() is None, (server.folder / "log").read_text()
        try:
            return server.execute("postgres", "SELECT 1")
        except psycopg.OperationalError:
            assert time.monotonic() < end, (server.folder / "log").read_text()
            time.sleep(0.05)
