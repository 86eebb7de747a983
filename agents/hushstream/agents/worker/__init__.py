"""A worker process: makes the Faust app from its settings, joins the consumer group, and owns partitions."""
