"""What is done with runs that are stored: re-score, compare, import, test models again."""
