"""The simulation of a whole cluster: seeded faults in virtual time, and the judgement over each run."""
