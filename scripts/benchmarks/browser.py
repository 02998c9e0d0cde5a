"""Measure pages with a model in them, in Chromium without a window: size, time to the first token, and speed.

Requires the extra dev, chromium and chromedriver.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which

from selenium import webdriver

from gptmini.loading import load
from gptmini.page import write_page

from .harness import Table, positive

PROMPT = "The "


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--model",
        type=Path,
        action="append",
        required=True,
        help="a run, checkpoint or folder; may be repeated",
    )
    parser.add_argument("--new-tokens", type=positive, default=256, help="tokens per text")


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Measure each model."""
    with tempfile.TemporaryDirectory() as name:
        for path in arguments.model:
            page = Path(name) / f"{path.stem}.html"
            model, tokenizer = load(path)
            write_page(page, model, tokenizer, name=path.stem, dtype="int8", defaults={})

            called = f"{path.stem}, {model.n_parameters / 1e6:.1f} M parameters"
            table.add(f"{called}: megabytes of the page", page.stat().st_size / 1e6)
            firsts, speeds = [], []
            for _ in range(arguments.turns):
                with browser() as driver:
                    start = time.perf_counter()
                    driver.get(page.as_uri())
                    written(driver, 1)
                    firsts.append(time.perf_counter() - start)

                    start = time.perf_counter()
                    n_tokens = written(driver, arguments.new_tokens)
                    speeds.append(n_tokens / (time.perf_counter() - start))
            table.add_median(f"{called}: seconds to the first token", firsts)
            table.add_median(f"{called}: tokens per second", speeds)


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """Start Chromium, and stop it when the block ends."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    options.binary_location = which("chromium") or ""
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(which("chromedriver"))
    )
    driver.set_script_timeout(600)
    try:
        yield driver
    finally:
        driver.quit()


def written(driver: webdriver.Chrome, n_tokens: int) -> int:
    """Let the page write a text of at most n_tokens tokens, and return its number of tokens."""
    script = """
        const options = {maxNewTokens: arguments[1], temperature: 0.8, seed: 7};
        gptmini.generate(arguments[0], options).then(({ids}) => arguments[2](ids.length));
    """
    return driver.execute_async_script(script, PROMPT, n_tokens)
