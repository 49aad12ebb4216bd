"""Scores of one run from its stored rows."""
