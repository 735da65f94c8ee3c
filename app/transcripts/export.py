"""A conversation for other programs: JSON with everything in it, Markdown and a web page of the branch in view.

The one thing a reader would get wrong: what the model or the user wrote is content and never structure. In Markdown it
cannot end a fence, make a heading of ours, load a picture or carry HTML; on the page everything is text.
"""

import base64
import hashlib
import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from app.report import artesian_version
from app.sanitize import one_line, visible
from app.transcripts.markdown import contained, fenced, inline
from app.transcripts.records import UNKNOWN_TIME, Node
from app.transcripts.transcript import Transcript

Form = Literal["md", "json", "html"]

_WHO = {"system": "System", "user": "You", "assistant": "Reply"}
_STYLE = """
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; }
:root { color-scheme: light dark; }
article { margin: 1.5rem 0; padding-left: 1rem; border-left: 3px solid; }
h2, footer, summary { font-size: .85rem; font-weight: normal; opacity: .7; margin: 0; }
pre { margin: .3rem 0; font: inherit; white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def export(transcript: Transcript, form: Form) -> str:
    """The conversation in that form, ending in a line end."""
    match form:
        case "json":
            return json.dumps(as_json(transcript), indent=1) + "\n"
        case "md":
            return "\n".join(_markdown(transcript)) + "\n"
        case "html":
            return _page(transcript)


def as_json(transcript: Transcript) -> dict[str, Any]:
    """Every message of every branch, as one object under the envelope of `--json`."""
    head = transcript.head
    data = {
        "id": transcript.id,
        "title": transcript.title,
        "created": transcript.created.isoformat(),
        "head": None if head is None else head.id,
        "path": [node.id for node in transcript.path()],
        "nodes": [node_json(node) for node in transcript.nodes()],
        "damage": [asdict(one) for one in transcript.damage],
    }
    return {"artesian": artesian_version(), "kind": "transcript", "data": data}


def node_json(node: Node) -> dict[str, Any]:
    """A message as plain JSON values; its text exactly as it was, the model by its name."""
    plain = {**asdict(node), "created": node.created.isoformat()}
    for run in plain["runs"]:
        if run["facts"] is not None:
            run["facts"]["model"] = _model_name(run["facts"]["model"])
    return plain


def _model_name(folder: str) -> str:
    """What an export says of the model. Where it lies is the user's own affair: the path has their name in it."""
    return Path(folder).name or folder


def remarks(node: Node) -> list[str]:
    """What is to be said of a message below it: how it ended, and with what. Safe for one line each."""
    ends = {
        "complete": "",
        "growing": "still being written",
        "stopped": "stopped by you",
        "failed": f"failed: {one_line(node.error)}",
        "cut": {"length": "cut at the token limit", "context": "cut where the context was full"}.get(
            node.reason or "", "cut off with the program"
        ),
    }
    said = [ends[node.status]] if ends[node.status] else []
    if node.facts is not None:
        model = "the bundled demo" if node.facts.is_demo else one_line(_model_name(node.facts.model))
        said.append(f"{model}, {one_line(node.facts.numerics)}")
    if node.runs and node.runs[-1].sampling.seed is not None:
        said.append(f"seed {node.runs[-1].sampling.seed}")
    return [*said, *(one_line(notice) for notice in node.notices)]


def _title(transcript: Transcript) -> str:
    return one_line(transcript.title) or "Empty conversation"


def _when(node: Node) -> str:
    return "" if node.created == UNKNOWN_TIME else node.created.strftime("%Y-%m-%d %H:%M UTC")


# Markdown


def _markdown(transcript: Transcript) -> Iterator[str]:
    yield f"# {inline(_title(transcript))}"
    for number, node in enumerate(transcript.path(), start=1):
        yield ""
        yield f"## {number}. {_WHO[node.role]}" + (f", {_when(node)}" if _when(node) else "")
        if node.thinking:
            yield ""
            yield "Thinking:"
            yield ""
            yield fenced(node.thinking)
        if node.text:
            yield ""
            yield contained(node.text) if node.role == "assistant" else fenced(node.text)
        for remark in remarks(node):
            yield ""
            yield f"*{inline(remark)}*"


# a web page


def _page(transcript: Transcript) -> str:
    title = html.escape(_title(transcript))
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    articles = "\n".join(_article(number, node) for number, node in enumerate(transcript.path(), start=1))
    return f"""<!DOCTYPE html>
<html lang="und">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{title}</h1>
{articles}
</body>
</html>
"""


def _article(number: int, node: Node) -> str:
    parts = [f"<h2>{number}. {_WHO[node.role]} {_when(node)}</h2>".replace(" </h2>", "</h2>")]
    if node.thinking:
        parts.append(f"<details><summary>Thinking</summary><pre>{_text(node.thinking)}</pre></details>")
    if node.text:
        parts.append(f'<pre dir="auto">{_text(node.text)}</pre>')
    said: Sequence[str] = remarks(node)
    if said:
        parts.append(f"<footer>{html.escape(' | '.join(said))}</footer>")
    return "<article>\n" + "\n".join(parts) + "\n</article>"


def _text(text: str) -> str:
    # A page swallows the first line end inside <pre>.
    return "\n" + html.escape(visible(text))
