"""Translates each Kafka request into one of ours, and the answer back."""
