"""Looking over a stream of one's own; see :mod:`~clear_mlflow.data.checking.findings`."""

from clear_mlflow.data.checking.findings import check_own as check_own
