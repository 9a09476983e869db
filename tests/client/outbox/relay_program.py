"""A program that tests kill: a relay."""

from __future__ import annotations

import sys

from tidelog import OutboxRelay, SqliteOutbox

if __name__ == "__main__":
    path, bootstrap, name = sys.argv[1:]
    OutboxRelay(SqliteOutbox(path), bootstrap, name=name, transaction_timeout_ms=2_000).run()
