"""The vocabulary that all other folders share: ids, error codes, configuration, events of a log."""
