"""Free ports for the servers of tests."""

import itertools
import os
import socket

# Below those that a system hands to outgoing connections (32768 and up on Linux): what is free
# when it is looked at is still free seconds later, when a server that was started listens.
_FIRST, _LAST = 15000, 32000
# Test runs side by side begin at different places, and a port is handed out once.
_NEXT = itertools.cycle(range(_FIRST, _LAST))
for _ in range(os.getpid() * 101 % (_LAST - _FIRST)):
    next(_NEXT)


def free_port() -> int:
    for port in itertools.islice(_NEXT, _LAST - _FIRST):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError(f"every port from {_FIRST} to {_LAST} of this machine is taken")
