"""Where the service listens."""

from __future__ import annotations

import socket

import pytest

from proplace.apps.serve.config import config_of
from proplace.apps.serve.running import _listening
from proplace.core.errors import OptionError


def config(**facts):
    served = {"model": "m.npz", "train": "t.csv", "delta": 0.01}
    return config_of({"models": {"m": served}, **facts})


def test_any_port_that_is_free():
    with _listening(config(port=0)) as listening:
        host, port = listening.getsockname()
        assert host == "127.0.0.1"
        assert port > 0
        with socket.create_connection((host, port)):
            pass


def test_answers_do_not_wait_for_more_to_send():
    """The event loop sets TCP_NODELAY where the protocol is named, and not where it is left open."""
    with _listening(config(port=0)) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_a_port_that_is_taken():
    with _listening(config(port=0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(OptionError, match=f"127.0.0.1:{port} cannot be listened on.*--port"):
            _listening(config(port=port))
