"""Settings: names, types, defaults, bounds and the pages generated from them."""
