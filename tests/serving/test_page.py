"""The page continues texts, answers chats and shows probabilities and attention, in a real browser."""

import re
import shutil

import pytest
import torch

from gptmini.generation import generate
from gptmini.page import server_page
from gptmini.tokenizer import chat_encoder_of
from serving.clients import LETTERS, served

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
PATIENCE = 30  # seconds
PAGE = server_page()


def test_the_page_needs_nothing_else_and_never_reads_text_as_html():
    assert not re.search(r"(src|href)=\"(?!data:,)|url\(|@import|https?://", PAGE)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", PAGE)


@pytest.fixture(scope="module")
def browser():
    if not BROWSER or not DRIVER:
        pytest.skip("chromium and chromedriver are not installed")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=420,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.mark.slow
def test_the_page_asks_again_with_the_key_and_runs_no_script_of_others(browser, model):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    def find(selector):
        return browser.find_element(By.CSS_SELECTOR, selector)

    def wait(condition):
        return WebDriverWait(browser, PATIENCE).until(lambda _: condition())

    with served(model, LETTERS, api_key="secret", max_tokens=100) as (url, _):
        browser.get(url)
        wait(find("#api_key").is_displayed)
        assert find("#model").text == ""
        find("#api_key").send_keys("secret", Keys.TAB)
        wait(lambda: find("#model").text == "tiny")
        find("#prompt").send_keys("abc?", Keys.ENTER)
        wait(lambda: browser.execute_script("return messages.length") == 2)
        assert find("#error").text == ""

        browser.get_log("browser")
        add = "const s = document.createElement('script'); s.textContent = 'document.title = 1';"
        browser.execute_script(f"{add} document.body.append(s);")
        assert browser.title == "gptmini"
        (entry,) = browser.get_log("browser")
        assert "Content Security Policy" in entry["message"]


@pytest.mark.slow
def test_text_chat_probabilities_and_attention(browser, model):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    def find(selector):
        return browser.find_elements(By.CSS_SELECTOR, selector)

    def wait(condition):
        return WebDriverWait(browser, PATIENCE).until(lambda _: condition())

    def is_idle():
        return not find("#stop")[0].is_enabled()

    with served(model, LETTERS, defaults={"temperature": 0.8}) as (url, _):
        browser.get(url)
        wait(lambda: find("input[value=chat]")[0].is_selected())  # the model has a template

        # A chat, sent by the keyboard.
        find("#max_tokens")[0].clear()
        find("#max_tokens")[0].send_keys("12")
        find("#prompt")[0].send_keys("abc?", Keys.CONTROL, Keys.ENTER)
        wait(lambda: len(find(".turn")) == 2 and is_idle())
        question, answer = (turn.get_property("textContent") for turn in find(".turn > .text"))
        prompt = LETTERS.decode(
            chat_encoder_of(LETTERS).prompt([{"role": "user", "content": "abc?"}])
        )
        (expected,) = generate(model, LETTERS, prompt, max_new_tokens=12, temperature=0.8)
        assert (question, answer) == ("abc?", expected.removeprefix(" "))

        # The button Clear ends an answer, and the cleared answer is not a part of the next chat.
        find("#prompt")[0].send_keys("abc?")
        browser.execute_script("answer(); clear();")
        wait(is_idle)
        assert browser.execute_script("return messages.length") == 0
        assert find(".turn") == []

        # A chat that outgrows the context goes on without its oldest messages.
        for n_turns in range(2, 14, 2):
            find("#prompt")[0].send_keys("abc?", Keys.ENTER)
            wait(lambda n_turns=n_turns: len(find(".turn")) == n_turns and is_idle())
        assert browser.execute_script("return start") > 0
        assert browser.execute_script("return messages.length") == 12

        # A text, and the likeliest tokens at one position.
        find("input[value=text]")[0].click()
        find("#prompt")[0].clear()
        find("#prompt")[0].send_keys("abc")
        find("#send")[0].click()
        wait(lambda: find("#output .token") and is_idle())
        (expected,) = generate(model, LETTERS, "abc", max_new_tokens=12, temperature=0.8)
        assert find("#output")[0].get_property("textContent") == "abc" + expected
        find("#output .token")[1].click()
        shares = [row.text.split()[-2] for row in find("#likeliest tr")]
        assert 10 <= len(shares) <= 11
        with torch.no_grad():
            ids = LETTERS.encode("abc" + expected[0])
            logits = model(torch.tensor([ids]))[0, -1]
        highest = 100 * logits.softmax(-1).max().item()
        assert float(shares[0]) == pytest.approx(highest, abs=0.006)

        # Attention: a picture for each layer and head.
        find("#look")[0].click()
        wait(lambda: find("#heads canvas"))
        assert len(find("#heads canvas")) == model.config.n_layers * model.config.n_heads
        find("#heads button")[0].click()
        find("#large_canvas")[0].send_keys(Keys.ARROW_UP)
        assert re.search(r"attends to “a”: \d+\.\d %", find("#large_cell")[0].text)

        # A narrow window needs no scrolling to the side, and nothing failed.
        assert browser.execute_script("return document.body.scrollWidth <= window.innerWidth")
        severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        # Chromium logs each answer with status 400. There is one for each turn that was left out.
        assert all("400" in entry["message"] for entry in severe)
        assert len(severe) < 6
        assert find("#error")[0].text == ""
