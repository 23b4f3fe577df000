"""Running a job without a cluster: ledger in files, Spark local, driver and coordinator in one process.

The command line calls it. It wires the parts together and decides nothing that they decide.
"""
