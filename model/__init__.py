"""The vocabulary that every other folder speaks: ids, error codes, configuration, events of a log."""
