"""Run the command line and send it a signal just before it renames its n-th file.

``python signalled.py N SIGNAL WORD...``: a batch writes each shard under another name first, so its
writes can be counted. A test that counts needs no clock.
"""

from __future__ import annotations

import os
import signal
import sys


def install(left, number):
    def look(event, _):
        nonlocal left
        if event == "os.rename":
            left -= 1
            if left == 0:
                # Ctrl-C on a terminal goes to all processes of the group.
                os.kill(0 if number == signal.SIGINT else os.getpid(), number)

    sys.addaudithook(look)


if __name__ == "__main__":  # workers import this file again
    install(int(sys.argv[1]), int(sys.argv[2]))
    del sys.argv[1:3]
    from proplace.cli import main

    main()
