"""Each of Kafka's requests turned into one of ours, and the answer back."""
