"""What images are and what is wrong with them: hashes, damage, leaks, findings."""
