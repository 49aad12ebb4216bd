"""What was measured and is not stored yet, on local disk."""
