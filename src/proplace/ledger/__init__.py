"""Promises to people: a ledger of them, and audits of retrained models."""
