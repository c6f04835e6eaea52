"""What people start: the command line, batches, the report, the experiment and the demo.

It may import every room.
"""
