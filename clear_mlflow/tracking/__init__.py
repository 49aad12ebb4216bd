"""The one package that talks to MLflow: rows in, rows and scores out."""
