"""Messages from a training process to its supervisor, through a connection between the two.

Both processes are ours, so the pickled messages between them are not foreign data.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Literal

# What a training process sends. "checked": the resolved TrainConfig; "metadata": StreamMetadata;
# "curve", "test", "state" and "row": what is measured; "done": the last row was sent; "error": a
# ClearError, after which the process ends.
MessageType = Literal["checked", "metadata", "curve", "test", "state", "row", "done", "error"]


def send(connection: Connection, message_type: MessageType, content: Any = None) -> None:
    """Send a message. Large files in its content (weights, states) are not copied for it."""
    fields = vars(content) if is_dataclass(content) else {}
    files = {name: value for name, value in fields.items() if isinstance(value, bytes)}
    if files:
        content = replace(content, **dict.fromkeys(files))
    connection.send((message_type, content, list(files)))
    for file in files.values():
        connection.send_bytes(file)


def receive(connection: Connection) -> tuple[MessageType, Any]:
    """Return the type and content of the next message of :func:`send`.

    Raises EOFError or OSError if the other process has ended, also in the middle of a message.
    """
    message_type, content, names = connection.recv()
    files = {name: connection.recv_bytes() for name in names}
    return message_type, replace(content, **files) if files else content
