"""A sink of one's own, in one file: see `sqlite_sink.py` and docs/writing-a-sink.md."""
