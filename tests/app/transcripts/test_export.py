"""Exports: everything is there, and nothing a model or a user wrote is more than text."""

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from app.sanitize import visible
from app.transcripts.export import Form, export
from app.transcripts.files import FileOps
from app.transcripts.markdown import contained, fenced
from app.transcripts.session import ChatSession
from app.transcripts.transcript import Transcript
from engine.events import Event, Notice, TextDelta, ThinkingDelta, TokenDrawn
from tests.app.transcripts.chats import chat
from tests.fakes import ScriptedBackend, turn_done

_HOSTILE = (
    "\x1b]0;owned\x07\u202e<script>alert(1)</script> <img src=x onerror=alert(1)> ![](http://t.example/x)\n"
    "</pre></article><h1>fake</h1> &lt;b&gt; \u200b\U000e0041\ud800\n"
    "```\n## 9. You\n"
)


def _said(path: Path, question: str, answer: str, thought: str = "") -> Transcript:
    transcript = Transcript(path / "chat.jsonl", FileOps(), exists=False)
    session = ChatSession(transcript)
    node = session.add_user(question)
    backend = ScriptedBackend()
    writer = session.begin_reply(node, session.request(node), backend.facts())
    events: list[Event] = [TokenDrawn(token=1), ThinkingDelta(text=thought), TextDelta(text=answer)]
    for event in [*events, Notice(text="drive <b> \x1b failed"), turn_done()]:
        writer.take(event)
    return transcript


class _Page(HTMLParser):
    """Which elements a page has, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_shows_hostile_text_as_text(tmp_path: Path) -> None:
    page = export(_said(tmp_path, _HOSTILE, _HOSTILE, _HOSTILE), "html")
    parsed = _Page(page)
    assert parsed.tags <= {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "article",
        "h2",
        "pre",
        "details",
        "summary",
        "footer",
    }
    assert parsed.attributes <= {"lang", "charset", "http-equiv", "content", "name", "dir"}
    assert parsed.text.count(visible(_HOSTILE)) == 3
    assert not re.search(r"[^\n\x20-\x7e\u2026\u2400-\u2426]", page)


def test_a_page_may_load_and_run_nothing(tmp_path: Path) -> None:
    page = export(_said(tmp_path, "a", "b"), "html")
    assert "default-src 'none'; style-src 'sha256-" in page
    assert not re.search(r"<script|<link|<img|<iframe|src=|href=|url\(|@import", page)


@given(st.text(st.sampled_from("<>&\"'/!-[]ab \n\x1b\u202e\u200b\ud800") | st.characters()))
def test_any_text_on_a_page_reads_as_it_is_shown_on_a_terminal(text: str) -> None:
    class Shown:
        id, title, head = "x", text, None

        def path(self) -> list[object]:
            return []

    parsed = _Page(export(Shown(), "html"))  # type: ignore[arg-type]
    assert parsed.tags <= {"html", "head", "meta", "title", "style", "body", "h1"}


_SIGNS = r"``` ```` ~~~ ` `` # = | > < ! [ \ a <script> </div> <!-- <?x <b> ![a](b) ![a][b]"
_BLANKS = ("\n", "\n\n", "\n---\n", " ", "   ", "    ", "- ", "1. ", "> ", "# h", "## 9. You", "[b]: c\n")
_MARKS = st.sampled_from([*_SIGNS.split(" "), *_BLANKS])


@given(st.lists(_MARKS, max_size=30).map("".join))
def test_no_reply_can_carry_html_pictures_or_headings_of_the_document(text: str) -> None:
    """An independent parser reads the result: CommonMark, and with the tables that others have."""
    for parser in (MarkdownIt("commonmark"), MarkdownIt("commonmark").enable("table")):
        tokens = parser.parse(f"{contained(text)}\n\nour paragraph\n")
        kinds = {inner.type for token in tokens for inner in (token, *(token.children or ()))}
        assert not kinds & {"html_block", "html_inline", "image"}
        assert not [
            token for token in tokens if token.type == "heading_open" and token.tag in ("h1", "h2") and not token.level
        ]
        # Nothing in the reply swallows what comes behind it.
        assert any(token.type == "inline" and token.content.endswith("our paragraph") for token in tokens)


@given(st.text(st.sampled_from("`~ab \n\t") | st.characters()))
def test_a_fence_holds_any_text_unchanged(text: str) -> None:
    tokens = MarkdownIt("commonmark").parse(f"{fenced(text)}\n\nbehind")
    assert tokens[0].type == "fence" and tokens[0].content == visible(text) + "\n"
    assert tokens[2].content == "behind"


@pytest.mark.parametrize(
    "text",
    [
        "Use `Vec<T>` and `a ![b]` here.\n\n```html\n<b>bold</b>\n# no heading\n```\n\n- one\n- two\n\n1 < 2 and a<=b",
        "| a | b |\n|---|---|\n| `x` | y |",
        "1. First:\n   ```c\n   #include <stdio.h>\n   ```\n2. Second",
    ],
)
def test_ordinary_replies_stay_as_they_are(text: str) -> None:
    assert contained(text) == text


def test_headings_go_below_ours_and_an_open_fence_is_closed() -> None:
    assert contained("# A\n###### B\nC\n---") == "### A\n###### B\nC\n\\---"
    assert contained("~~~~\ncode") == "~~~~\ncode\n~~~~"


def _least_time(text: str) -> float:
    spent = []
    for _ in range(3):
        began = time.thread_time()
        assert contained(text).strip() or not text.strip()
        assert text.strip() in fenced(text)
        spent.append(time.thread_time() - began)
    return min(spent)


@pytest.mark.parametrize("text", ["`" * 100_000, "`a``b" * 20_000, "\\<" * 100_000, "- " * 100_000, " " * 200_000])
def test_a_hostile_reply_takes_no_longer_than_its_length(text: str) -> None:
    half, whole = (_least_time(part) for part in (text[: len(text) // 2], text))
    assert whole < 3 * half + 0.05  # a quadratic way takes four times as long, and here seconds to minutes


def test_markdown_has_every_message_of_the_branch_in_view(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "chat.jsonl", FileOps(), exists=False)
    for _ in chat(transcript):
        pass
    text = export(transcript, "md")
    assert text.startswith("# A title\n\n## 1. System, ")
    assert "```text\none?\n```" in text and "\nHello there.\n" in text and "```text\nHm.\n```" in text
    assert "*stopped by you*" in text and "*drive b fails*" in text
    assert "Different" not in text  # it is in the branch that is not looked at


def test_json_has_all_branches_and_the_exact_text(tmp_path: Path) -> None:
    transcript = _said(tmp_path, _HOSTILE, "yes")
    ChatSession(transcript).edit(transcript.nodes()[0], "other")
    text = export(transcript, "json")
    assert text.isascii()
    data = json.loads(text)["data"]
    assert [node["text"] for node in data["nodes"]] == [_HOSTILE, "yes", "other"]
    assert data["path"] == ["m3"] and data["head"] == "m3"
    assert data["nodes"][1]["runs"][0]["facts"]["fingerprint"] == "f" * 64


@pytest.mark.parametrize("form", ["md", "json", "html"])
def test_the_model_is_named_without_where_it_lies(tmp_path: Path, form: Form) -> None:
    text = export(_said(tmp_path, "hello", "hi"), form)
    assert "scripted" in text and "/models" not in text, "the scripted model lies in /models/scripted"
