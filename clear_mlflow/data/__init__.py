"""Datasets: files on disk in, a stream of buckets out."""
