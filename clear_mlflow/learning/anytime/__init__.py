"""Tests inside a bucket: when they are due, and what one leaves as it was."""
