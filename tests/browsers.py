"""A browser without a window, for tests of pages."""

import shutil
from contextlib import contextmanager

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")


@contextmanager
def opened_browser():
    """Yield a driver of Chromium that keeps what the browser logs. Skip the test if Chromium is not installed."""
    if not BROWSER or not DRIVER:
        pytest.skip("chromium and chromedriver are not installed")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=420,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def awaited(browser, expression, *arguments):
    """Return the value of a promise in the page. The expression may use `arguments`. Raises its error."""
    script = f"""
        const done = arguments[arguments.length - 1];
        const promise = (async () => ({expression}))();
        promise.then((value) => done({{value}}), (error) => done({{error: error.message, code: error.code}}));
    """
    result = browser.execute_async_script(script, *arguments)
    if "error" in result:
        raise ValueError(result["error"], result["code"])
    return result["value"]
