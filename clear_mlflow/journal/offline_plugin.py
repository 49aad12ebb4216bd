"""What MLflow loads when it is imported: the stores of offline folders, by their URI."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clear_mlflow.journal.offline_store import OfflineStore


def open_offline_store(store_uri: str, artifact_uri: str | None = None) -> OfflineStore:
    """Return the store of an offline folder. artifact_uri: not used.

    The entry point mlflow.tracking_store names this function.
    """
    # MLflow is not imported completely when it loads this module.
    from clear_mlflow.journal.offline_store import OfflineStore
    from clear_mlflow.store.offline import get_offline_folder

    folder = get_offline_folder(store_uri)
    if folder is None:
        raise ValueError(f"{store_uri} does not name an offline folder")
    return OfflineStore(folder)
