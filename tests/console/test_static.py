"""The page's files: others' are what they were, all are small, and nothing in them makes markup of data."""

from __future__ import annotations

import hashlib
import re
import tomllib

import pytest

from tidelog.console.web.files import DIRECTORY, Files

from .conftest import Console, Person

VENDOR = DIRECTORY / "vendor"
VENDORED = tomllib.loads((VENDOR / "VENDORED.toml").read_text())
OURS = [
    path
    for path in DIRECTORY.rglob("*")
    if path.suffix in (".js", ".css", ".html", ".svg") and VENDOR not in path.parents
]
BYTES_MAX = 300_000


def test_what_others_wrote_is_as_it_is_in_their_packages() -> None:
    files = {one["file"] for one in VENDORED.values()}
    texts = {text for one in VENDORED.values() for text in one["texts"]}
    assert files | texts | {"VENDORED.toml"} == {path.name for path in VENDOR.iterdir()}
    for one in VENDORED.values():
        assert hashlib.sha256((VENDOR / one["file"]).read_bytes()).hexdigest() == one["sha256"], one["file"]
        assert one["version"]
        assert one["licence"]


def test_all_of_it_is_small() -> None:
    assert sum(len(file.body) for file in Files().by_name.values()) < BYTES_MAX


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_data_never_becomes_markup_or_code_and_nothing_comes_from_elsewhere(path: object) -> None:
    text = (DIRECTORY / str(path)).read_text()
    found = re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|style=|\bon[a-z]+=\"|script:",
        text,
    )
    assert found == []
    assert [url for url in re.findall(r"(?:https?:)?//[a-z][\w.-]+\.[a-z]{2,}", text) if "www.w3.org" not in url] == []


def test_every_module_that_is_imported_is_there() -> None:
    for path in OURS:
        for name in re.findall(r'from "(\.[^"]+)"', path.read_text()):
            assert (path.parent / name).resolve().is_file(), (path.name, name)


def test_a_file_is_kept_by_its_tag_and_packed(open_console: Console, anybody: Person) -> None:
    said = anybody.get("/static/app.js")
    assert (said.status, said.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert said.headers["content-length"] == str(len(said.body))
    assert anybody.ask("GET", "/static/app.js", headers={"If-None-Match": said.headers["etag"]}).status == 304
    packed = anybody.ask("GET", "/static/app.js", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(said.body) / 2


def test_any_page_of_the_address_bar_is_the_page(anybody: Person) -> None:
    for path in ("/", "/topics/a%2Fb/messages?x=<script>", "/groups"):
        said = anybody.get(path)
        assert (said.status, said.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert said.body == anybody.get("/").body, "nothing of the address is in it"
