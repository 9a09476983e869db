"""The demo's second half: delays by carrier and hour from a log of flights, through Spark, exactly once."""
