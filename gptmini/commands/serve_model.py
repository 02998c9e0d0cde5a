"""Load a model, and serve it over HTTP."""

import argparse
import socket
from contextlib import suppress
from pathlib import Path

from gptmini.commands.sample_options import rules_of
from gptmini.console.printable import printable
from gptmini.console.printing import print_lines, print_note, print_resolved_run
from gptmini.generation import Rules
from gptmini.loading import load_for_sampling
from gptmini.serving import Engine, QuietServer, Server, ServerSettings, listen
from gptmini.system.hardware import dtype_name
from gptmini.system.process import restore_gc_and_sigint

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


def serve_model(path: Path, options: argparse.Namespace) -> None:
    """Load the model of a run, and answer requests until Ctrl-C or SIGTERM."""
    rules = rules_of(options)
    Rules(**rules)  # checks the ranges before the model is loaded
    listening = listen(options.host, options.port)
    restore_gc_and_sigint()
    model, tokenizer = load_for_sampling(path, device=options.device, dtype=options.dtype)
    print_resolved_run(options.run, path)

    names = [*own_names(options.host), *options.allow_host]
    settings = ServerSettings(
        model=printable(options.run.name or options.run.resolve().name),
        defaults={name: value for name, value in rules.items() if name != "max_new_tokens"},
        seed=options.seed,
        stop=options.stop,
        ignore_end_of_text=options.ignore_end_of_text,
        max_tokens=options.max_new_tokens,
        allowed_hosts=names,
        allow_origins=options.allow_origin,
        api_key=options.api_key,
    )
    if options.host not in LOCAL_HOSTS:
        print_note(
            f"note: clients can call the server {', '.join(names)}; --allow-host adds a name"
        )
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
    address = f"http://{host}:{listening.getsockname()[1]}"
    dtype = dtype_name(model.embedding.weight.dtype)
    print_lines(f"serving {settings.model} in {dtype} at {address} (API: {address}/v1)")
    try:
        QuietServer(Server(engine, tokenizer, settings).app()).run(sockets=[listening])
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
