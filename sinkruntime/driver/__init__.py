"""The driver's shell around the protocol: start check, back-pressure, staging, lineage, decision.

It knows no Spark: `sinkruntime.spark` hands it batches and a way to stage them, the simulator does the same.
"""
