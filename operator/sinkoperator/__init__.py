"""The control plane of sinkjob: watches SinkJobs, runs their drivers, commits their checkpoints.

Started by the chart's Deployment. May import `sinkruntime`; `sinkruntime` never imports it.
There is never an `operator/__init__.py`: it would shadow the standard library's `operator`.
"""
