"""Fetching archives and unpacking them."""
