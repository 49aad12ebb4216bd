"""The matrix and its metrics for people: tables, text, files, pictures and pages.

Nothing here computes a score. Bucket keys, dataset and run names are untrusted: each format escapes
them in its own way.
"""
