"""A figure that notebooks show by themselves (the extra ``plot``; imported when something is drawn)."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Drawing(Figure):
    """A figure that belongs to no window: a notebook shows it without a magic line."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
