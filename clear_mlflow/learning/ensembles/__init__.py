"""Several models that train together."""
