"""The records that coordinators and controllers write to their logs: types and bytes."""
