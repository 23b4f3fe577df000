"""The steps that a local run, a driver pod and a committer pod have in common.

`sinkruntime.local` and `sinkruntime.cluster` call them in their own order; nothing here knows where it runs.
"""
