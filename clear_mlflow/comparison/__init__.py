"""Runs side by side: groups, tests, pictures and a page; knows neither MLflow nor torch."""
