"""How classes of the whole project are made."""
