"""Commands that run in the test's own process."""

from click.testing import CliRunner, Result

from clear_mlflow.cli import main


def invoke(*words: object) -> Result:
    """Run a command. Standard error is part of the output."""
    return CliRunner().invoke(main, [str(word) for word in words])


def run_command(*words: object, code: int = 0) -> str:
    done = invoke(*words)
    assert done.exit_code == code, done.output
    return done.output
