"""Commands for groups, transactions and sinks."""
