"""Messages as people read them: decoded by a schema, with the fields hidden that are not for everybody."""
