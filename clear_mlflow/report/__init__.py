"""What people look at: the matrix and its metrics as tables, text, files and a picture.

Nothing here computes a score. Bucket keys, dataset and run names come from outside: each form
escapes them in its own way.
"""
