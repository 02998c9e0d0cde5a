"""Serve a trained model over HTTP: gptmini serve RUN [options]."""

import argparse
import os
import re
import socket
from contextlib import suppress
from importlib.util import find_spec

from gptmini.commands.mistakes import one_line_errors
from gptmini.commands.options import parse_options
from gptmini.commands.sample_options import DEVICE, RUN, SAMPLING, request_of
from gptmini.configuration.messages import advising_on_memory
from gptmini.console.printable import printable
from gptmini.console.printing import print_lines, print_note, print_resolved_run
from gptmini.runs import named_run
from gptmini.settings import CHAT_TOKENS
from gptmini.system.errors import UserError
from gptmini.system.files import install_command
from gptmini.system.process import restore_gc_and_sigint

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
# An origin as browsers send it, in lower case and without a path; or *, which stands for all origins.
ORIGIN = r"\*|[a-z][a-z0-9+.-]*://[^/]+"


OPTIONS = rf"""
{RUN}
--host HOST=127.0.0.1  address to listen on
--port INTEGER=8000  port to listen on
--allow-host NAME...  accept requests to this host name too, such as host.docker.internal; may be repeated
--allow-origin URL...  let pages of this origin use the API from a browser; may be repeated (default: none)
--api-key KEY  require this key from clients (default: the variable GPTMINI_API_KEY, otherwise none)
--batch-size COUNT=8  maximum number of answers that are generated at the same time
--max-waiting COUNT=64  maximum number of waiting requests; more are refused with 503
--context COUNT=8192  maximum number of tokens that the model sees; each of --batch-size answers takes memory for them
--max-new-tokens COUNT={CHAT_TOKENS}  maximum number of generated tokens
--seed INTEGER  random seed; the same seed gives the same samples (default: a new seed for each request)
{SAMPLING}
{DEVICE}
"""
DESCRIPTION = "Serve a trained model: a web page at /, and an API at /v1 for OpenAI's clients."


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    options = parse_options("serve", DESCRIPTION, OPTIONS, arguments)
    if not 0 <= options.port <= 65535:
        raise UserError(f"--port must be 0 to 65535, got {options.port}")
    # With an empty host, such as an unset variable of a shell, the server would listen on all addresses.
    if not options.host:
        raise UserError("--host must be an address or a name, got an empty text")
    for name in options.allow_host:
        if not re.fullmatch(r"(\*\.)?[^*]+", name):
            raise UserError(f"--allow-host must be a name or *.NAME, got {name!r}")
    options.allow_origin = [text.lower().removesuffix("/") for text in options.allow_origin]
    for origin in options.allow_origin:
        if not re.fullmatch(ORIGIN, origin):
            raise UserError(f"--allow-origin must be * or a URL without a path, got {origin!r:.80}")
    if options.api_key is None:
        options.api_key = os.environ.get("GPTMINI_API_KEY")
    # HTTP headers are ASCII. An empty key, such as an unset variable of a shell, would let every client in.
    if options.api_key is not None and not re.fullmatch("[!-~]+", options.api_key):
        raise UserError("--api-key must have visible ASCII characters only, and at least one")
    return options


@one_line_errors()
@advising_on_memory("lower --context or --batch-size, or use a machine with more memory")
def main(arguments: list[str]) -> None:
    """Load the model, and answer requests until Ctrl-C or SIGTERM."""
    options = parse(arguments)
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UserError(f"gptmini serve requires {missing[0]}; run: {install_command('serve')}")

    # Look for the run before the import of torch, which takes seconds.
    path = named_run(options.run, saved=True)
    request = request_of(options)

    from gptmini.loading import load_for_sampling
    from gptmini.model import dtype_of
    from gptmini.serving import Engine, QuietServer, ServerSettings, application, listen
    from gptmini.system.hardware import dtype_name

    listening = listen(options.host, options.port)
    restore_gc_and_sigint()
    model, tokenizer = load_for_sampling(path, device=options.device, dtype=options.dtype)
    print_resolved_run(options.run, path)

    names = [*own_names(options.host), *options.allow_host]
    settings = ServerSettings(
        model=printable(options.run.name or options.run.resolve().name),
        request=request,
        seed=options.seed,
        allowed_hosts=names,
        allow_origins=options.allow_origin,
        api_key=options.api_key,
    )
    port = listening.getsockname()[1]
    if options.host not in LOCAL_HOSTS:
        addresses = ", ".join(f"http://{name}:{port}" for name in names)
        print_note(f"note: other computers open {addresses}; --allow-host adds a name")
        if options.api_key is None:
            print_note("note: every client in the network can use it; set --api-key")
    engine = Engine(
        model,
        tokenizer,
        batch_size=options.batch_size,
        max_waiting=options.max_waiting,
        context=options.context,
    )
    longest = model.config.longest_input
    if engine.context < longest:
        print_note(
            f"note: the model sees {engine.context} of at most {longest} tokens; see --context"
        )
    # 0.0.0.0 and :: stand for all addresses. No client can connect to them.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)
    host = f"[{host}]" if ":" in host else host
    address = f"http://{host}:{port}"
    dtype = dtype_name(dtype_of(model))
    print_lines(f"serving {settings.model} in {dtype} at {address} (API: {address}/v1)")
    try:
        QuietServer(application(engine, tokenizer, settings)).run(sockets=[listening])
    finally:
        engine.close()


def own_names(host: str) -> list[str]:
    """Return the names and addresses by which other computers may call a server that listens on this host.

    If the server listens on all addresses, these are the computer's name, its name in networks without a name server,
    and the address that it uses for other networks.
    """
    if host not in ("0.0.0.0", "::"):
        return [host]
    name = socket.gethostname()
    names = [name, f"{name}.local"]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # an address for documentation; UDP sends nothing here
        names.append(probe.getsockname()[0])
    return names
