"""How the operator commits: coordinators as tasks of its loop, sinks' committers in worker processes.

`manager` runs a coordinator per job; `handle` and `proxies` are what it takes for a sink; `pool`, `process` and
`nursery` are the operator's side of a worker, `zygote` and `worker` the other one; `opening` and `cloud` resolve what a
worker is given, `egress` says what it may reach. It never decides a checkpoint, and knows no sink by name.
"""
