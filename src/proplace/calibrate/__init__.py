"""Choosing delta: trials on retrained models, refits, and conformal statements."""
