"""Settings: names, types, defaults, bounds and the pages made of them."""
