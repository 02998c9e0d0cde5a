"""The page shows chats, texts, probabilities and attention: from a server, and from a file with a model in it."""

import re
from contextlib import contextmanager

import pytest
import torch
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from gptmini.generation import generate
from gptmini.page import server_page, write_page
from gptmini.page.assembling import file_page
from gptmini.tokenizer import CharTokenizer, chat_encoder_of
from serving.clients import CHARACTERS, LETTERS, served
from sizes import TALKATIVE
from toys import wide_gpt

PATIENCE = 30  # seconds
HOSTILE = "</script><script>document.title = 1</script><img src=x onerror=alert(1)>"
PLAIN = CharTokenizer(CHARACTERS, end_of_text=True)  # without a chat template

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model():
    sizes = TALKATIVE | {"vocab_size": LETTERS.n_vocab, "context_length": 64}
    return wide_gpt(sizes).eval()


class Shown:
    """The page in a browser, as somebody uses it."""

    def __init__(self, browser):
        self.browser = browser

    def run(self, script, *arguments):
        return self.browser.execute_script(f"return {script}", *arguments)

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector):
        found = self.browser.find_elements(By.CSS_SELECTOR, selector)
        return [element.get_property("textContent") for element in found]

    def wait(self, condition):
        return WebDriverWait(self.browser, PATIENCE).until(lambda _: condition())

    def wait_idle(self):
        self.wait(lambda: self.run("running === null"))

    def click(self, selector):
        self.find(selector).click()
        self.wait_idle()

    def send(self, *keys):
        self.find("#prompt").send_keys(*keys)
        self.wait_idle()

    def fill(self, **values):
        self.run("document.querySelector('details').open = true")
        for name, value in values.items():
            self.find(f"#{name}").clear()
            self.find(f"#{name}").send_keys(value)
        self.run("document.querySelector('details').open = false")

    def chunks(self):
        """Return the roles and the texts of the turns."""
        return self.run("turns.map((turn) => [turn.role, turn.content])")


@pytest.fixture(params=["server", "file"])
def page(request, browser, model, tmp_path):
    """Return a function that opens the page of a model, from a server or from a file."""

    @contextmanager
    def opened(tokenizer=LETTERS, name="tiny"):
        shown = Shown(browser)
        browser.get_log("browser")
        if request.param == "file":
            out = tmp_path / "model.html"
            defaults = {"temperature": 0.8, "max_tokens": 200}
            write_page(out, model, tokenizer, name=name, dtype="fp32", defaults=defaults)
            browser.get(out.as_uri())
            shown.wait(lambda: shown.run("described.model"))
            yield shown
        else:
            defaults = {"temperature": 0.8}
            options = {"defaults": defaults, "seed": None, "max_tokens": 100_000, "name": name}
            with served(model, tokenizer, **options) as (url, _):
                browser.get(url)
                shown.wait(lambda: shown.run("described.model"))
                yield shown
        severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        # Chromium logs each answer with status 400. There is one for each turn that was left out.
        assert all("400" in entry["message"] for entry in severe), severe

    return opened


def answer_of(model, messages, n, **options):
    """Return the answer that Python computes at temperature 0."""
    ids = chat_encoder_of(LETTERS).prompt(messages)
    text = generate(model, LETTERS, [ids], max_new_tokens=n, temperature=0, **options)[0]
    return text.removeprefix(" ")


def user(text):
    return {"role": "user", "content": text}


def test_a_chat_and_its_buttons(page, model):
    with page() as shown:
        assert shown.browser.title == "tiny"
        assert shown.find("input[value=chat]").is_selected()
        assert shown.find("#seed").get_property("value") == ""
        assert not shown.find("#temperature").is_displayed()
        shown.fill(max_tokens="9", temperature="0", system="be in")

        shown.send("abc?", Keys.ENTER)
        first = answer_of(model, [{"role": "system", "content": "be in"}, user("abc?")], 9)
        assert shown.chunks() == [["user", "abc?"], ["assistant", first]]
        assert shown.find("#spoken").get_property("textContent") == first
        kinds = [
            shown.find(f".{role}").value_of_css_property("background-color")
            for role in ("user", "assistant")
        ]
        assert kinds[0] != kinds[1]

        # A new answer; the message again; and without it.
        shown.fill(temperature="1", seed="3", max_tokens="30")
        shown.click("#retry")
        assert shown.run("document.activeElement.id") == "prompt"
        second = shown.chunks()[1][1]
        shown.click("#retry")
        assert len({first, second, shown.chunks()[1][1]}) == 3
        shown.click("#edit")
        assert (shown.chunks(), shown.find("#prompt").get_property("value")) == ([], "abc?")
        shown.send(Keys.SHIFT, Keys.ENTER, Keys.NULL, "ab", Keys.ENTER)
        assert shown.chunks()[0] == ["user", "abc?\nab"]
        shown.send("def", Keys.ENTER)
        shown.click("#undo")
        assert [role for role, _ in shown.chunks()] == ["user", "assistant"]

        # The clipboard may be closed; then the text is selected.
        shown.click("#copy")
        shown.wait(lambda: shown.find("#note").text)
        shown.run(
            "void (URL.createObjectURL = (blob) => { window.saved = blob.text(); return '#'; })"
        )
        shown.click("#save")
        answer = shown.chunks()[1][1]
        assert shown.browser.execute_async_script("saved.then(arguments[0])") == (
            f"You: abc?\nab\n\ntiny: {answer}\n"
        )

        # The other mode has a text of its own.
        shown.click("input[value=text]")
        assert shown.chunks() == []
        shown.click("input[value=chat]")
        assert shown.chunks() == [["user", "abc?\nab"], ["assistant", answer]]

        # The button Clear ends an answer.
        shown.find("#prompt").send_keys("abc?")
        shown.run("void (send(), clear())")
        shown.wait_idle()
        assert shown.chunks() == []


def test_a_chat_that_outgrows_the_context_goes_on_without_its_oldest_messages(page, model):
    with page() as shown:
        shown.fill(max_tokens="12", temperature="0")
        for n_turns in range(2, 14, 2):
            shown.send("abc?", Keys.ENTER)
            assert (len(shown.chunks()), shown.find("#error").text) == (n_turns, "")
            # An answer is not cut where the context is full.
            assert len(shown.chunks()[-1][1]) == 12
        assert shown.run("start") > 0
        assert "oldest messages" in shown.find("#note").text

        # Without the later messages, the model sees the first message again.
        shown.find(".assistant .token").click()
        shown.click("#alternatives button:not([aria-current]):enabled")
        assert (len(shown.chunks()), shown.run("start"), shown.find("#error").text) == (2, 0, "")
        begun = shown.chunks()[1][1][0]
        ids = chat_encoder_of(LETTERS).prompt([user("abc?")]) + LETTERS.encode(" " + begun)
        (rest,) = generate(model, LETTERS, [ids], max_new_tokens=12, temperature=0)
        assert shown.chunks()[1][1] == begun + rest

        # One answer at a time.
        shown.find(".assistant .token").click()
        alternative = "document.querySelector('#alternatives button:enabled').click()"
        shown.run(f"void ($('prompt').value = 'ab', send(), {alternative})")
        shown.wait_idle()
        assert [role for role, _ in shown.chunks()] == ["user", "assistant"] * 2


def test_escape_stops_and_an_unanswered_message_comes_back(page):
    with page() as shown:
        shown.click("input[value=text]")
        shown.fill(max_tokens="100000", temperature="0")
        shown.find("#prompt").send_keys("abc", Keys.CONTROL, Keys.ENTER)
        shown.wait(lambda: shown.run("document.querySelectorAll('.token').length > 5"))
        shown.find("#prompt").send_keys(Keys.ESCAPE)
        shown.wait_idle()
        assert shown.find("#error").text == ""
        assert shown.find("#send").is_displayed()
        assert len(shown.chunks()[1][1]) < 100_000

        # Empty fields have no effect, and a length is required.
        options = shown.run("options()")
        assert (options["top_k"], options["top_p"]) == (0, 1)
        shown.fill(max_tokens="")
        shown.click("#send")
        assert (len(shown.chunks()), shown.find("#max_tokens").is_displayed()) == (2, True)

        shown.click("input[value=chat]")
        shown.fill(max_tokens="9")
        shown.send("ä", Keys.ENTER)
        assert "ä" in shown.find("#error").text
        assert shown.find("#prompt").get_property("value") == "ä"
        assert shown.chunks() == []


def test_a_text_grows_and_continues_from_an_alternative(page, model):
    with page() as shown:
        shown.click("input[value=text]")
        shown.fill(max_tokens="12", temperature="0")
        shown.send("abc", Keys.CONTROL, Keys.ENTER)
        (written,) = generate(model, LETTERS, "abc", max_new_tokens=12, temperature=0)
        assert shown.chunks() == [["user", "abc"], ["assistant", written]]
        assert shown.find("#prompt").get_property("value") == ""

        # With an empty field, the text goes on.
        shown.click("#send")
        shown.find("#prompt").send_keys("ab")
        shown.find("#log").send_keys(Keys.CONTROL, Keys.ENTER)
        shown.wait_idle()
        text = "".join(content for _, content in shown.chunks())
        (longer,) = generate(model, LETTERS, "abc", max_new_tokens=24, temperature=0)
        assert text.startswith(f"abc{longer}ab")
        shown.click("#undo")
        assert "".join(content for _, content in shown.chunks()) == f"abc{longer}"

        # A click elsewhere closes the alternatives of a token.
        shown.browser.find_elements(By.CSS_SELECTOR, ".token")[3].click()
        shown.find("#prompt").click()
        assert shown.run("document.activeElement.id") == "prompt"
        shown.browser.find_elements(By.CSS_SELECTOR, ".token")[3].click()

        # The alternatives of the second token beside it.
        token = shown.browser.find_elements(By.CSS_SELECTOR, ".token")[1]
        token.click()
        assert shown.texts("[aria-expanded=true]") == [written[1]]
        with torch.no_grad():
            logits = model(torch.tensor([LETTERS.encode("abc" + written[0])]))[0, -1]
        highest = logits.softmax(-1).topk(10)
        shares = [
            float(text.removeprefix("< ").split(" ")[0])
            for text in shown.texts("#alternatives .share")
        ]
        assert shares == pytest.approx((100 * highest.values).tolist(), abs=0.06)
        box, place = shown.find("#alternatives").rect, token.rect
        room = shown.run("innerWidth") - box["width"] - 8
        assert box["x"] == pytest.approx(max(8, min(place["x"], room)), abs=1)
        assert box["y"] == pytest.approx(place["y"] + place["height"] + 4, abs=2)
        assert shown.find("#alternatives [aria-current]").text.startswith(
            LETTERS.decode([int(highest.indices[0])])
        )

        second = LETTERS.decode([int(highest.indices[1])])
        shown.browser.find_elements(By.CSS_SELECTOR, "#alternatives button")[1].click()
        shown.wait_idle()
        begun = f"abc{written[0]}{second}"
        (rest,) = generate(model, LETTERS, begun, max_new_tokens=12, temperature=0)
        assert "".join(content for _, content in shown.chunks()) == begun + rest
        assert not shown.find("#alternatives").is_displayed()
        # Undo brings back the text before the alternative.
        shown.click("#undo")
        assert "".join(content for _, content in shown.chunks()) == f"abc{longer}"
        assert "".join(shown.texts(".turn > span")) == f"abc{longer}"

        shown.click("#edit")
        assert (shown.chunks(), shown.find("#prompt").get_property("value")) == ([], f"abc{longer}")

        # A wrong setting is shown before anything is sent.
        shown.fill(top_p="5")
        shown.send(Keys.CONTROL, Keys.ENTER)
        assert (shown.chunks(), shown.find("#top_p").is_displayed()) == ([], True)
        shown.fill(top_p="0.955")

        # A text may be longer than the context.
        shown.find("#prompt").clear()
        shown.send("abc" * 50, Keys.CONTROL, Keys.ENTER)
        assert [role for role, _ in shown.chunks()] == ["user", "assistant"]
        shown.click("#look")
        end = shown.run("request().prompt")[-64:]
        shown.wait(lambda: "".join(shown.texts("#attended .token")).replace("↵", "") == end)


def test_an_answer_continues_from_an_alternative_by_the_keyboard(page, model):
    with page() as shown:
        shown.fill(max_tokens="12", temperature="0")
        shown.send("abc?", Keys.ENTER)
        before = shown.chunks()[1][1]
        shown.find("#log").send_keys(Keys.ARROW_RIGHT)
        for keys in ([Keys.ENTER], [Keys.ESCAPE], [Keys.ARROW_RIGHT, Keys.ENTER]):
            shown.run("document.activeElement").send_keys(*keys)
        assert shown.texts(".token[aria-expanded=true]") == [before[1]]
        rows = shown.texts("#alternatives code")
        place = next(i for i, text in enumerate(rows) if text != before[1] and len(text) == 1)
        shown.browser.find_elements(By.CSS_SELECTOR, "#alternatives button")[place].send_keys(
            Keys.ENTER
        )
        shown.wait_idle()
        begun = before[0] + rows[place]
        ids = chat_encoder_of(LETTERS).prompt([user("abc?")]) + LETTERS.encode(" " + begun)
        (rest,) = generate(model, LETTERS, [ids], max_new_tokens=12, temperature=0)
        assert shown.chunks() == [["user", "abc?"], ["assistant", begun + rest]]

        # An answer may start with the token of a space, which is no part of its text.
        space, letter = ({"text": text, "logprob": -1, "likeliest": []} for text in " e")
        piece = {"text": "e", "tokens": [space, letter]}
        shown.run("void addPiece(turns[1], arguments[0])", piece)
        shown.browser.find_elements(By.CSS_SELECTOR, ".token")[-1].click()
        assert shown.texts("#alternatives code") == ["e"]


def test_attention_in_the_text_and_as_a_matrix(page, model):
    with page() as shown:
        shown.click("input[value=text]")
        shown.fill(max_tokens="20", temperature="0")
        shown.send("abc", Keys.CONTROL, Keys.ENTER)
        text = "".join(content for _, content in shown.chunks())
        shown.click("#look")
        shown.wait(lambda: shown.texts("#attended .token"))
        assert [choice.text for choice in Select(shown.find("#layer")).options] == [
            "mean",
            "0",
            "1",
        ]

        with torch.no_grad():
            ids = torch.tensor([LETTERS.encode(text)])
            of_rows = model.attention_weights(ids, range(model.config.n_layers))
            weights = of_rows[:, 0]  # (N, H, T, T)
        shown.browser.find_elements(By.CSS_SELECTOR, "#attended .token")[4].click()
        for layer, head in (("mean", "mean"), ("1", "mean"), ("mean", "2"), ("1", "2")):
            Select(shown.find("#layer")).select_by_visible_text(layer)
            Select(shown.find("#head")).select_by_visible_text(head)
            of_layers = weights if layer == "mean" else weights[[int(layer)]]
            of_heads = of_layers if head == "mean" else of_layers[:, [int(head)]]
            share, place = of_heads.mean((0, 1))[4].max(0)
            said = re.fullmatch(r"“(.*)” attends most to “(.*)”: (.*) %", shown.find("#cell").text)
            assert said[2].replace("\\n", "\n") == LETTERS.decode([int(ids[0, place])])
            assert float(said[3]) == pytest.approx(100 * share.item(), abs=0.1)

        shown.find("#as_matrix").click()
        shown.find("#matrix").send_keys(Keys.ARROW_UP, Keys.ARROW_LEFT)
        assert "attends to" in shown.find("#cell").text
        assert not shown.find("#attended").is_displayed()
        shown.click("#look")
        assert shown.find("#log").is_displayed()


def luminance(color):
    """Return the relative luminance of a color such as rgb(1, 2, 3) (WCAG 2.2)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_it_is_readable_on_a_phone_and_in_the_dark_and_follows_the_text(page):
    with page() as shown:
        sizes = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        shown.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
        try:
            shown.fill(max_tokens="60")
            for _ in range(8):
                shown.send("abc?", Keys.ENTER)
            lines = [Keys.SHIFT, *10 * [Keys.ENTER], Keys.NULL]  # a tall message
            shown.send("a", *lines, "b", Keys.ENTER)
            log = "const log = document.getElementById('log');"
            behind = shown.browser.execute_script(
                f"{log} return log.scrollHeight - log.clientHeight - log.scrollTop"
            )
            assert behind < 2
            assert shown.run("document.getElementById('log').scrollTop") > 0
            assert shown.find("#form").rect["y"] > 600
            for step in (None, "#look", "#as_matrix", "summary"):
                if step:
                    shown.find(step).click()
                    shown.wait(lambda: shown.texts("#attended .token"))
                assert shown.run("document.documentElement.scrollWidth") == 390
            touched = shown.browser.find_elements(By.CSS_SELECTOR, "button, select, summary")
            assert all(each.rect["height"] >= 40 for each in touched if each.is_displayed())

            for scheme in ("light", "dark"):
                feature = {"name": "prefers-color-scheme", "value": scheme}
                shown.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
                body = shown.find("body")
                colors = [
                    body.value_of_css_property(name) for name in ("color", "background-color")
                ]
                dark, light = sorted(map(luminance, colors))
                assert (light + 0.05) / (dark + 0.05) > 7
                assert (luminance(colors[0]) > luminance(colors[1])) == (scheme == "dark")
                # The text on the most surprising token, and the words in the empty field.
                mark = "document.querySelector('.token').style.background = 'var(--mark)'"
                shown.run(f"void ({mark})")
                token = shown.find(".token").value_of_css_property("background-color")
                style = "getComputedStyle(document.getElementById('prompt'), '::placeholder')"
                for pair in ((colors[0], token), (shown.run(f"{style}.color"), colors[1])):
                    dark, light = sorted(map(luminance, pair))
                    assert (light + 0.05) / (dark + 0.05) > 4.5
        finally:
            shown.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            shown.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_names_and_tokens_are_text_and_a_model_without_chat_says_why(page):
    with page(tokenizer=PLAIN, name=HOSTILE) as shown:
        assert shown.browser.title == shown.find("#model").text == HOSTILE
        assert not shown.find("input[value=chat]").is_enabled()
        assert "has no chat template; fine-tune it: gptmini train" in shown.find("#reason").text
        shown.send("<a>:</a>", Keys.CONTROL, Keys.ENTER)
        assert shown.texts(".user span") == ["<a>:</a>"]
        assert shown.run("document.querySelectorAll('img, a, main script').length") == 0


def test_a_server_with_a_key_asks_for_it_and_no_script_of_others_runs(browser, model):
    shown = Shown(browser)
    with served(model, LETTERS, api_key="secret", max_tokens=100) as (url, _):
        browser.get(url)
        shown.wait(shown.find("#api_key").is_displayed)
        assert "API key" in shown.find("#error").text
        assert browser.switch_to.active_element == shown.find("#api_key")
        shown.find("#api_key").send_keys("other", Keys.TAB)
        shown.wait(lambda: "wrong" in shown.find("#error").text)
        shown.find("#api_key").clear()
        shown.find("#api_key").send_keys("secret", Keys.TAB)
        shown.wait(lambda: shown.find("#model").text == "tiny")
        shown.send("abc?", Keys.ENTER)
        assert (len(shown.chunks()), shown.find("#error").text) == (2, "")

        browser.get_log("browser")
        add = "const s = document.createElement('script'); s.textContent = 'document.title = 1';"
        browser.execute_script(f"{add} document.body.append(s);")
        assert browser.title == "tiny"
        (entry,) = browser.get_log("browser")
        assert "Content Security Policy" in entry["message"]

    shown.send("a second question", Keys.ENTER)
    assert "server does not answer" in shown.find("#error").text
    assert shown.find("#prompt").get_property("value") == "a second question"


def test_the_page_needs_nothing_else_and_never_reads_text_as_html():
    page = server_page()[0] + file_page("{}")
    assert not re.search(r"(src|href)=\"(?!data:,)|url\(|@import|https?://", page)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(| style=", page
    )
