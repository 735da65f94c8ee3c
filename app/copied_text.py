"""What is taken out of a conversation besides a reply's own text: code, a reply with its details, all, a file of it."""

from collections.abc import Iterable
from pathlib import Path
from typing import cast

from markdown_it import MarkdownIt

from app.errors import UsageError
from app.paths import as_named
from app.transcripts.export import Form, export
from app.transcripts.records import Node
from app.transcripts.transcript import Transcript
from app.tui.figures import footer_parts
from app.whole_files import NEW_FILE, make_file

_WHO = {"user": "You", "assistant": "Reply", "system": "System"}


def code_blocks(markdown: str) -> list[str]:
    """The code blocks of a text in their order, without their fences."""
    tokens = MarkdownIt("commonmark", {"maxNesting": 12}).parse(markdown)
    return [token.content for token in tokens if token.type in ("fence", "code_block")]


def who(node: Node) -> str:
    """Whose message it is, as a heading."""
    return _WHO[node.role]


def quoted(text: str) -> str:
    """A text as a quotation in Markdown."""
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def details_of(question: Node | None, reply: Node) -> str:
    """A reply with its question, how it was made, and what that took."""
    parts = [] if question is None else [quoted(question.text)]
    parts.append(reply.text)
    made = []
    for run in reply.runs:
        facts = run.facts
        if facts is not None:
            made.append(f"model {facts.model} ({facts.fingerprint[:12]}), {facts.numerics}, kernels {facts.kernels}")
            made.append(f"Artesian {facts.version}")
        sampling = run.sampling
        made.append(
            f"seed {sampling.seed}, temperature {sampling.temperature}, top_p {sampling.top_p}, "
            f"top_k {sampling.top_k}, min_p {sampling.min_p}, thinking {'off' if run.effort is None else run.effort}"
        )
        if run.stats is not None:
            made.append(" | ".join(footer_parts(run.stats, run.reason)))
    return "\n\n".join([*parts, "\n".join(made)]).rstrip() + "\n"


def conversation_text(path: Iterable[Node]) -> str:
    """Every message, the user's quoted as in Markdown, thinking left out."""
    return "\n\n".join(node.text if node.role == "assistant" else quoted(node.text) for node in path)


def export_to(transcript: Transcript, name: str) -> Path:
    """Write the conversation to a file that is not there yet, in the form its name ends in; where it is now.

    Without a name it is one of its own in the current folder. Raises: UsageError; OSError.
    """
    if transcript.head is None:
        raise UsageError("there is nothing to export yet")
    path = as_named(name or f"artesian-{transcript.id}.md").absolute()
    form = path.suffix.removeprefix(".")
    if form not in ("md", "json", "html"):
        hint = "Give a name that ends in .md, .json or .html."
        raise UsageError(f"{path.name} does not say in which form", hint=hint)
    content = export(transcript, cast(Form, form)).encode("utf-8", errors="replace")
    make_file(path, content, mode=NEW_FILE)
    return path
