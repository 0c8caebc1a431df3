"""Builds the page as a single file with modules, styles and data. Its Content-Security-Policy blocks all other scripts.

Modules are unchanged except for the paths in their imports, which an import map resolves to `data:` URLs. The policy
only allows scripts with a nonce generated for this file, and the modules they import: unlike a hash, a nonce also
covers imports. Rollouts cannot contain the nonce, because they are older than it.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
import secrets
from html import escape
from pathlib import Path

import orjson

from rollyard.analysis.charts.svg import STYLE

STATIC = Path(__file__).parent / "static"
_STYLE = re.compile(r'<link rel="stylesheet" href="static/([^"]+)">\n?')
_MODULE = re.compile(r'<script type="module" src="static/([^"]+)"></script>\n?')
_IMPORT = re.compile(r"""(\bfrom\s*|\bimport\s*\(?\s*)(['"])(\.{1,2}/[^'"]+)\2""")
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def single_page(data: bytes, note: str) -> bytes:
    """Build the page with `data` (JSON) in the element `embedded`, and with `note` at the top."""
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    style = "\n".join(_style_sheet(name).read_text(encoding="utf-8") for name in _STYLE.findall(page))
    imports = orjson.dumps({"imports": _modules()}).decode()
    start_imports = "".join(f'import("page/{name}");' for name in _MODULE.findall(page))
    nonce = secrets.token_urlsafe(24)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    for found in (_STYLE, _MODULE):
        page = found.sub("", page)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<meta charset="utf-8">'
    page = page.replace('<meta charset="utf-8">', head, 1)
    page = page.replace(
        "</head>", f'<style>{style}</style>\n<script type="importmap" nonce="{nonce}">{imports}</script>\n</head>', 1
    )
    body = f'<script type="application/json" id="embedded">{_safe(data.decode())}</script>\n'
    body += f'<script nonce="{nonce}">{start_imports}</script>\n'
    page = page.replace('<div id="app">', f'{_note_html(note)}<div id="app">', 1)
    return page.replace("</body>", f"{body}</body>", 1).encode()


def _style_sheet(name: str) -> Path:
    """Return the path of a style sheet. The charts' style sheet is in `analysis/charts`."""
    return STYLE if name == "css/charts.css" else STATIC / name


def _modules() -> dict[str, str]:
    """Return the page's modules as `data:` URLs, by the names under which other modules import them."""
    found = {}
    for path in sorted(STATIC.rglob("*.js")):
        name = path.relative_to(STATIC).as_posix()
        code = base64.b64encode(_renamed(path.read_text(encoding="utf-8"), name).encode()).decode()
        found[f"page/{name}"] = f"data:text/javascript;base64,{code}"
    return found


def _renamed(code: str, name: str) -> str:
    """Replace relative imports with names under the page's root, because `data:` URLs have no relative paths."""

    def renamed(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), found[3]))
        return f"{found[1]}{found[2]}page/{path}{found[2]}"

    return _IMPORT.sub(renamed, code)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _safe(json: str) -> str:
    """Escape JSON so that it cannot end the script element or start a comment."""
    return re.sub("[<>&\u2028\u2029]", lambda found: _UNSAFE[found[0]], json)


def _note_html(note: str) -> str:
    return f'<p class="message exported">{escape(note)}</p>\n' if note else ""
