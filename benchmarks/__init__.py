"""Measurements of sinkjob against what Spark does by itself. `make bench` runs them; nothing else imports them."""
