"""Tests inside a bucket: rows between the rows of the accuracy matrix, which are none of them."""
