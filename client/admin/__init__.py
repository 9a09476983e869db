"""Administration of topics, groups, settings, transactions and replicas."""
