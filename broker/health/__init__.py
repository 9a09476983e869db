"""Whether a cluster is well: one table of rules, for the command, the HTTP listener, alerts and consoles."""
