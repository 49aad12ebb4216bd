"""Training as a supervised child process, so that whatever ends it, the record is closed."""
