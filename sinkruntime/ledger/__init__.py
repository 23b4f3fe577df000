"""Ledger stores: where the ledger lies, and how it is changed by compare-and-swap.

`store` is the interface that driver and coordinator use, `memory` and `file` keep it in a process and in a folder,
`change` applies an event to whatever store it is given.
"""
