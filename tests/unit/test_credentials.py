"""What lets anyone into a store is masked, in whatever form an address carries it."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clear_mlflow.core.credentials import has_credentials, masked
from clear_mlflow.core.errors import TrackingError

SECRET = "c4n4ry-s3cr3t"
FORMS = {
    "user and password": "postgresql://me:{}@host/db",
    "token alone": "http://{}@host:5000",
    "password alone": "http://:{}@host:5000",
    "user alone": "https://{}@host/path",
    "query": "postgresql+psycopg2://host/db?password={}",
    "query of a socket": "postgresql:///db?user=me&password={}&host=/tmp",
    "query without a name": "http://host/?{}",
    "query of a file": "sqlite:////tmp/x.db?key={}",
    "second query value": "mysql://host/db?a=b;sslkey={}",
    "an @ in the password": "postgresql://me:p@{}@host/db",
    "a slash in the password": "postgresql://me:a/{}@host/db",
    "a slash before an @": "postgresql://me:{}/b@host/db",
    "a question mark in the password": "postgresql://me:a?{}@host/db",
    "a hash in the password": "http://me:#{}@host",
    "a third slash": "postgresql:///me:{}@host/db",
    "a fragment": "http://host/#{}",
    "no scheme": "me:{}@host/db",
    "both": "postgresql://{0}:{0}@host/db?x={0}",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("around", ["{}", "cannot read '{}': no answer", "({}) twice: {}"])
def test_an_address_is_shown_without_what_lets_anyone_in(form, around):
    """Alone and within a message; what is masked once stays as it is."""
    address = form.format(SECRET)
    shown = masked(around.format(address, address))
    assert SECRET not in shown
    assert masked(shown) == shown
    assert has_credentials(address)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_error_of_ours_quotes_an_address(form):
    """Whatever text it was made of: nobody has to think of it where a message is written."""
    assert SECRET not in str(TrackingError(f"cannot read {form.format(SECRET)!r}"))


def test_a_message_long_before_the_end_of_an_address_is_masked():
    """What is cut off is cut after it was masked."""
    text = "x" * 480 + "postgresql://me:" + SECRET + "-" * 600 + "@host/db"
    assert SECRET not in masked(text)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("postgresql://me:p%40" + SECRET + "@host/db", "password 'p@" + SECRET + "' is wrong"),
        ("postgresql://me:p@" + SECRET + "/x@host/db", f"could not translate '{SECRET}'"),
        ("postgresql://host/db?password=a%20" + SECRET, f"no password a {SECRET}"),
        (f"http://{SECRET}@host", f"user {SECRET} is unknown"),
        (f"http://me:a b{SECRET}@host", f"cannot parse http://me:a b{SECRET}@host"),
    ],
)
def test_a_driver_may_quote_a_part_of_an_address(address, message):
    """Decoded, or taken for another part of it: the address in use is known."""
    assert SECRET not in masked(message, address)


@pytest.mark.parametrize(
    "address",
    [
        "sqlite:////home/me@work/mlflow.db",
        "file:///home/me@work/mlruns",
        "http://127.0.0.1:5000",
        "postgresql://host/db",
        "./mlruns",
        "run 12:30 ended",
        "databricks://profile",
    ],
)
def test_what_carries_no_credentials_stays(address):
    """An @ in a path is a character like any other."""
    assert masked(address, address) == address
    assert not has_credentials(address)


@given(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=4, max_size=20))
def test_any_password_is_masked(password):
    """Of printable characters, escaped or not."""
    shown = masked(f"postgresql://me:<{password}>@host/db")
    assert shown == "postgresql://***@host/db"


MEGABYTES = r"""
import resource
resource.setrlimit(resource.RLIMIT_CPU, (100, 100))
from clear_mlflow.core.anytime.anytime_row import anytime_place
from clear_mlflow.core.credentials import masked
from clear_mlflow.core.errors import ClearError
from clear_mlflow.core.record import row_index
from clear_mlflow.core.text import one_line
from clear_mlflow.core.untrusted import json_value
from clear_mlflow.importers import FORMATS, Source, read_runs
from clear_mlflow.journal.journal import _ENTRY

reads = [masked, one_line, row_index, anytime_place, _ENTRY.fullmatch]
reads.append(lambda text: json_value(text, 2**22))
for kind in FORMATS:
    reads.append(lambda text, kind=kind: read_runs(Source("a", text.encode()), kind=kind))
for unit in ["a", ":", "@", "/", "a:", "://", "[", "'", "0", "0.", " a", ","]:
    text = unit * (10**6 // len(unit)) + "!"
    for read in reads:
        try:
            read(text)
        except ClearError:
            pass
print("done")
"""


def test_a_megabyte_from_outside_takes_no_time_that_grows_with_its_square():
    """Of any few characters again and again, through all that foreign text reaches.

    In a process that the system ends after two minutes of computing: 32 kB once took 24 s.
    """
    done = subprocess.run(
        [sys.executable, "-c", MEGABYTES], capture_output=True, text=True, check=False, timeout=900
    )
    assert done.stdout == "done\n", done.stderr[-2000:]
