"""The public functions, which Python, commands, notebooks and server call."""
