"""What can be set: names, types, defaults, bounds and the pages made of them."""
