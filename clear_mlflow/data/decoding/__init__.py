"""Image files in, decoded squares of bytes out, kept in a cache."""
