"""The transactional outbox: a database transaction and its messages, both or neither."""
