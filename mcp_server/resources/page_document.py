"""The page in one HTML document, which needs no server: a shared file, and the MCP App ``ui://runward/runs``."""

import json
import re
from importlib.resources import files

from mcp_server.views.people_rows import KINDS

MODULES = (  # each after those that it imports
    *("base.js", "state.js", "list.js", "chart.js", "log.js", "text.js", "dialogs.js"),
    *("run.js", "trials.js", "several.js", "machines.js", "app.js"),
)
_IMPORT = re.compile(r"^import \{ (.+) \} from '\./(?:vendor/)?([\w-]+\.js)'$", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|function|class) (\w+))", re.MULTILINE)
_EXPORT_LIST = re.compile(r"^export \{ (.+) \}$", re.MULTILINE)
_VENDOR_EXPORT = re.compile(r"export\{(.+)\};?\s*$")
# A host makes its frame as high as the page: nothing is measured by the height of the window.
_STYLE_OF_APP = """
.lines, .diff {max-height: 360px} .with-detail .side {height: auto; max-height: 640px}
.list {padding-bottom: 12px} .detail {padding-bottom: 16px}
"""


def write_document(script: str, style: str = "") -> str:
    """Return the page as one text of HTML. ``script`` runs before it and sets ``RUNWARD_EXPORT``, its answers."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>runward</title>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<style>{_read('static/style.css')}{style}</style><div id=app></div>"
        f"<script>{_read('static/vendor/uplot.js')}</script><script>{script}</script><script>{bundle()}</script></html>\n"
    )


def write_runs_app() -> str:
    """Return the MCP App: the page, whose questions its host hands to tools."""
    return write_document(f"const KINDS = {json.dumps(KINDS)}\n{_read('bridge.js')}", _STYLE_OF_APP)


def bundle() -> str:
    """Return the modules of the page as one script: each a function that returns what it exports."""
    vendor = _read("static/vendor/preact-htm.js")
    exported = _VENDOR_EXPORT.search(vendor)
    assert exported is not None, "the vendored file ends with its exports"  # noqa: S101 - a test opens each export
    pairs = (pair.split(" as ") for pair in exported[1].split(","))
    names = ", ".join(f"{pair[-1]}: {pair[0]}" for pair in pairs)
    parts = [_wrap("preact-htm.js", vendor[: exported.start()], names)]
    for module in MODULES:
        text = _IMPORT.sub(
            lambda found: f"const {{ {found[1].replace(' as ', ': ')} }} = M['{found[2]}']", _read(f"static/{module}")
        )
        own = [*_EXPORT.findall(text), *(name for found in _EXPORT_LIST.findall(text) for name in found.split(", "))]
        text = _EXPORT_LIST.sub("", _EXPORT.sub("", text))
        parts.append(_wrap(module, text, ", ".join(own)))
    return "const M = {}\n" + "".join(parts)


def _wrap(module: str, text: str, names: str) -> str:
    return f"M['{module}'] = (() => {{\n{text}\nreturn {{ {names} }} }})()\n".replace("</script", "<\\/script")


def _read(name: str) -> str:
    return files("mcp_server.page").joinpath(*name.split("/")).read_text("utf-8")
