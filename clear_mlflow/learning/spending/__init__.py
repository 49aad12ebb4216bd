"""What training costs, and what it may cost."""
