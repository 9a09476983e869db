"""The sink ledger: numbered batches that one decision commits."""
