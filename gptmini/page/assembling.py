"""Put the parts of the page into one HTML file that needs no other file."""

import base64
import hashlib
import re
from importlib.resources import files

# The scripts that run in the worker of a page with a model. Such a page keeps them as text.
WORKER = ("tokenizer.js", "model.js", "worker.js")
TENSORS = "<!--tensors-->"  # where the weights belong
COMMON_POLICY = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "


def server_page() -> tuple[str, str]:
    """Return the page of gptmini serve, and its content security policy."""
    page = _page(_script("server.js"))
    return page, _policy(page, "connect-src 'self'; frame-ancestors 'none'")


def file_page(data: str) -> str:
    """Return a page that has its model in itself.

    data is JSON without <. The page has the comment TENSORS where the weights belong.
    """
    texts = "".join(_script(name, f' id="{name}" type="text/plain"') for name in WORKER)
    stored = f'<script id="data" type="application/json">{data}</script>\n{TENSORS}\n'
    page = _page(texts + stored + _script("file.js"))
    policy = _policy(page, "connect-src 'none'; worker-src blob:")
    charset = '<meta charset="utf-8">'
    meta = f'{charset}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return page.replace(charset, meta, 1)


def _page(engine: str) -> str:
    """Return page.html in which the texts of the style sheet and the scripts replace their links."""
    page = _text("page.html")
    page = page.replace(
        '<link rel="stylesheet" href="page.css">', f"<style>\n{_text('page.css')}</style>"
    )
    page = page.replace('<script src="engine.js"></script>\n', engine)
    return page.replace('<script src="page.js"></script>\n', _script("page.js"))


def _script(name: str, attributes: str = "") -> str:
    return f"<script{attributes}>\n{_text(name)}</script>\n"


def _text(name: str) -> str:
    return files("gptmini.page").joinpath(name).read_text(encoding="utf-8")


def _policy(page: str, more: str) -> str:
    """Return a policy that lets a browser run only the scripts and the style of this page.

    `more` has more directives.
    """
    sources: dict[str, str] = {"script": "", "style": ""}
    for tag, content in re.findall(r"<(script|style)>(.*?)</\1>", page, flags=re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        sources[tag] += f" 'sha256-{digest}'"
    allowed = "; ".join(f"{tag}-src{hashes}" for tag, hashes in sources.items())
    return f"{COMMON_POLICY}{allowed}; {more}"
