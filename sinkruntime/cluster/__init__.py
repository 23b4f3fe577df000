"""What runs in a job's own pods: the driver with Spark, and the committer for sinks with `runOn: Job`.

`sinkjob driver` and `sinkjob commit` start it. The operator makes the pods, raises the epoch and ends them; here
nothing is created but Spark's executors and payload ConfigMaps.

Rights that these processes use, all in the job's own namespace. `ledger` is the one ConfigMap of that name; the names
of payloads are made later, and no Role can say "begins with".

| process | resource | verbs |
| --- | --- | --- |
| driver, committer | configmaps, only `ledger` | get, list, watch, patch |
| driver | configmaps (payloads) | create, get |
| committer | configmaps (payloads) | create, get, list, delete |
| driver, committer | pods | get, list, watch |
| driver | pods (executors) | create, patch, delete, deletecollection |

Nothing is asked of Secrets: the kubelet mounts them. A dry run of an executor's pod needs no more than `create`.
"""
