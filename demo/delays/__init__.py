"""The demo's second half: delays by carrier and hour out of a log of flights, through Spark, exactly once."""
