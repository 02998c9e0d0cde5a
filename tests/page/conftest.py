"""A browser that the tests of this package share."""

import pytest

from browsers import opened_browser


@pytest.fixture(scope="package")
def browser():
    with opened_browser() as browser:
        yield browser
