"""The demo: 336,776 flights through the log and through Spark under kill -9. And the drills of the examples."""
