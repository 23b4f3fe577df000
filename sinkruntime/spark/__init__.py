"""Spark: reads the source, applies the transform, and stages each batch into all sinks in one pass.

The only package that imports pyspark. It decides nothing: a batch that is staged goes to the driver
(`sinkruntime.driver`), whose decision makes it a checkpoint.
"""
