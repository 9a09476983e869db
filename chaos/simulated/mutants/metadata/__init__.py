"""Rules of the quorum, of leadership and of where replicas are."""
