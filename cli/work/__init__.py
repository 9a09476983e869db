"""The work of commands: plans, findings and loads, without options and printing."""
