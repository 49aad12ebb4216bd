"""A tracked run from its opening to its end."""
