"""Put the parts of the page into one HTML file that needs no other file."""

import base64
import hashlib
import re
from importlib.resources import files


def server_page() -> str:
    """Return the page of gptmini serve."""
    return _with_parts("page.html")


def _with_parts(name: str) -> str:
    """Return an HTML file in which the text of each style sheet and each script replaces its link."""
    folder = files("gptmini.page")

    def text_of(name: str) -> str:
        return folder.joinpath(name).read_text(encoding="utf-8")

    html = re.sub(
        r'<link rel="stylesheet" href="([\w.]+)">',
        lambda link: f"<style>\n{text_of(link[1])}</style>",
        text_of(name),
    )
    return re.sub(
        r'<script src="([\w.]+)">',
        lambda link: f"<script>\n{text_of(link[1])}",
        html,
    )


def content_security_policy(page: str) -> str:
    """Return a policy that lets a browser run only the script and the style of this page."""
    policy = "default-src 'none'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    for tag, content in re.findall(r"<(script|style)>(.*?)</", page, flags=re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        policy += f"{tag}-src 'sha256-{digest}'; "
    return policy + "frame-ancestors 'none'"
