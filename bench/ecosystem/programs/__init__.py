"""Programs that checks start: they are clients, in the language of what they try."""
