"""The coordinator: the imperative shell that drives ledger and committers.

`coordinator` is its loop, `attempt` one round on one part, `handle` a sink's committers, `runner` runs them within a
time limit. It knows no sink by name, no Spark and no cluster.
"""
