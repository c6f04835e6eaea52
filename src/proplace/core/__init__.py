"""Networks, shifts, distances, errors, and small tools without mathematics.

The ground floor: it imports no other room.
"""
