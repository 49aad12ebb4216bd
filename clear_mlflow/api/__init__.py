"""What a person asks for, a module per verb: Python, commands, notebooks and server call these."""
