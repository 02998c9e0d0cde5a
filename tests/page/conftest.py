"""A browser that the tests of this package share."""

import pytest

from browsers import new_browser


@pytest.fixture(scope="package")
def browser():
    browser = new_browser()
    yield browser
    browser.quit()
