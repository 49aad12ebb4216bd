"""The public functions, a module per verb, which Python, commands, notebooks and server call."""
