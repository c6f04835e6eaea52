"""A worker of the service that does not search, but what the income of the first person says.

It imports nothing else, so that its process starts at once.
"""

from __future__ import annotations

import os
import time


def odd_functions():
    """What it can be asked."""

    def explain(name, people, options, seconds, *_):
        what = people[0]["income"]
        if what == 1:
            time.sleep(60)
        if what == 2:
            os._exit(9)
        if what == 3:
            raise RuntimeError(f"income {what} of somebody")
        if what == 4:
            time.sleep(0.4)
        return [[{"pid": os.getpid()}] for _ in people]

    return {"explain": explain}
