"""The commit protocol, pure: values in, values out.

`ledger` holds the state, `events` what can happen to it, `machine` the table and `step`, `start` the check before
the first batch, `garbage` what may be removed, `position` Spark's offsets, `codec` the written form.
Driver, coordinator and simulator call it. It never does I/O and knows no clock, thread, log or random number; it
imports the standard library only.
"""
