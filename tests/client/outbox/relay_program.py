"""A program that tests kill: a relay."""

from __future__ import annotations

import sys

from tidelog import OutboxRelay, PostgresOutbox, SqliteOutbox

if __name__ == "__main__":
    database, bootstrap, name = sys.argv[1:]
    outbox = PostgresOutbox(database) if database.startswith("host=") else SqliteOutbox(database)
    OutboxRelay(outbox, bootstrap, name=name).run()
