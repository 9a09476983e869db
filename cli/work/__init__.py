"""The work behind commands: plans, findings and loads, without options and printing."""
