"""The manifest: its models, how it is read from YAML, checked, digested and documented.

Called by the command line, the driver and the operator. Never connects to anything and starts nothing.
"""
