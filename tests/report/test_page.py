"""Pages are whole, offline and safe; the same figure gives the same bytes."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from ecokv_local.errors import EcokvError
from ecokv_local.report import Page, new_figure, save_png, to_png, to_svg


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href") and value]


def drawn() -> object:
    figure, axes = new_figure(1, 2)
    axes[0, 0].plot([1, 2, 3], [3, 1, 2], label="a <b> & c")
    axes[0, 0].legend()
    return figure


def test_text_is_never_markup() -> None:
    page = Page("<script>alert(1)</script>")
    page.paragraph("<img src=x onerror=alert(1)>")
    page.table(["a <b>"], [["<i>x</i>"]])
    page.image(b"png", 'a"><script>')
    parser = Tags()
    parser.feed(page.html())
    assert "script" not in parser.tags and "i" not in parser.tags
    assert parser.links == ["data:image/png;base64,cG5n"]


def test_nothing_is_fetched(tmp_path: Path) -> None:
    page = Page("curves")
    page.figure(drawn())
    page.save(tmp_path / "deep" / "page.html")
    text = (tmp_path / "deep" / "page.html").read_text(encoding="utf-8")
    parser = Tags()
    parser.feed(text)
    assert "svg" in parser.tags
    assert all(link.startswith(("#", "data:")) for link in parser.links)


def test_the_same_figure_gives_the_same_bytes() -> None:
    assert to_png(drawn()) == to_png(drawn())
    assert to_svg(drawn()) == to_svg(drawn())


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(EcokvError, match="file"):
        save_png(drawn(), tmp_path / "file" / "a.png")
    save_png(drawn(), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
