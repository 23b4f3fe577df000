"""The command line `sinkjob`: `main` is the entry point, the other modules are its commands and what they share.

Reads manifests, ledgers and targets, and says what it finds; only `run` and `ledger import` change anything.
"""
