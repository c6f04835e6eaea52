"""Answers for people: plain words, pictures, and a page to read."""

from proplace.explain.words import ChangeInWords, Wording, Words

__all__ = ["ChangeInWords", "Wording", "Words"]
