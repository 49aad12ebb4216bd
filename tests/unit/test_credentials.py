"""Credentials are masked, in every form of an address."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clear_mlflow.core import record
from clear_mlflow.core.credentials import has_credentials, mask_credentials
from clear_mlflow.core.errors import TrackingError
from clear_mlflow.data import times
from clear_mlflow.data.sources import huggingface
from clear_mlflow.importers import avalanche_files, mammoth, plain_text, renate

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
def test_addresses_are_shown_without_credentials(form, around):
    address = form.format(SECRET)
    message = around.format(address, address)
    masked = mask_credentials(message)
    assert SECRET not in masked
    assert SECRET not in str(TrackingError(message))
    assert mask_credentials(masked) == masked
    assert has_credentials(address)


def test_a_message_long_before_the_end_of_an_address_is_masked():
    text = "x" * 480 + "postgresql://me:" + SECRET + "-" * 600 + "@host/db"
    assert SECRET not in mask_credentials(text)


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
    assert SECRET not in mask_credentials(message, address)


@pytest.mark.parametrize(
    "address",
    [
        *("sqlite:////home/me@work/mlflow.db", "file:///home/me@work/mlruns"),
        *("http://127.0.0.1:5000", "postgresql://host/db", "./mlruns", "run 12:30 ended"),
        *("databricks://profile"),
    ],
)
def test_texts_without_credentials_are_unchanged(address):
    assert mask_credentials(address, address) == address
    assert not has_credentials(address)


@given(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=4, max_size=20))
def test_any_password_is_masked(password):
    masked = mask_credentials(f"postgresql://me:<{password}>@host/db")
    assert masked == "postgresql://***@host/db"


MODULES = (avalanche_files, huggingface, mammoth, plain_text, record, renate, times)
READERS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": expression.fullmatch
    for module in MODULES
    for name, expression in vars(module).items()
    if isinstance(expression, re.Pattern)
}
FRAGMENTS = [*" a1-+._/@'", "a:", "://", "?a=", "e1", "T1:", "\\ud8"]


@pytest.mark.parametrize(
    "read", [mask_credentials, *READERS.values()], ids=["mask_credentials", *READERS]
)
@settings(max_examples=25)
@given(st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=3).map("".join))
def test_masking_takes_linear_time(read, fragment):
    def seconds(length):
        text, taken = (fragment * length)[:length], []
        for _ in range(3):
            started = time.process_time()
            read(text)
            taken.append(time.process_time() - started)
        return min(taken)

    assert seconds(20_000) < 10 * seconds(5_000) + 0.05
