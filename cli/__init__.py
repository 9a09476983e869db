"""The ``tidelog`` command: nodes and local clusters, topics, records, logs, measurements.

Every command prints a table for people, or JSON for programs with ``--json``. Exit codes: 0 done, 1 failed, 2 wrong
usage or configuration, 130 interrupted. Errors are one line on stderr.
"""
