"""The transactional outbox: a database transaction and its messages succeed or fail together."""
