"""The learning loop: a stream of buckets in, rows of the accuracy matrix out. Knows no MLflow."""
