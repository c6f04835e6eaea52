"""Answers for people: plain words, pictures, and a page to read."""

from proplace.explain.claims import Claim
from proplace.explain.words import Description, Wording

__all__ = ["Claim", "Description", "Wording"]
