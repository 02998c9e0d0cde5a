"""A server in a thread, and what its clients need."""

import contextlib
import threading
import time

from gptmini.generation import Request, Rules
from gptmini.serving import Engine, QuietServer, ServerSettings, application, listen
from gptmini.tokenizer import CharTokenizer, with_chat_template

PATIENCE = 60  # seconds
CHARACTERS = "\n /:<>?AUabcdefghimnrsty"
LETTERS = with_chat_template(CharTokenizer(CHARACTERS, end_of_text=True))


@contextlib.contextmanager
def served(
    model,
    tokenizer,
    *,
    batch_size=4,
    max_waiting=100,
    max_tokens=64,
    defaults=(),
    stop=(),
    seed=1,
    name="tiny",
    **changes,
):
    """Serve a model on a free port in a thread; yield the address and the engine."""
    request = Request(rules=Rules(max_new_tokens=max_tokens, **dict(defaults)), stop=stop)
    settings = ServerSettings(model=name, request=request, seed=seed, **changes)
    engine = Engine(model, tokenizer, batch_size=batch_size, max_waiting=max_waiting)
    listening = listen("127.0.0.1", 0)
    running = QuietServer(application(engine, tokenizer, settings))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    while not running.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", engine
    finally:
        running.should_exit = True
        thread.join(PATIENCE)
        engine.close()
