"""The demo: 336,776 flights through the log and Spark under kill -9. Also, drills of the examples."""
