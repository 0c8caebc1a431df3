"""Builds the site from the whole repository, so that links work in the site, in a clone and on GitHub.

mkdocs reads one folder. These hooks fill it with symbolic links to every Markdown page and to the files that the pages
link to, each at its path in the repository. A second folder holds the package as installed, for the API reference,
because mkdocstrings does not follow the links in src/rollyard.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
MIRROR = ROOT / "build" / "site"
PAGES = ("*.md", "docs/**/*.md", "*/README.md", "*/*/README.md", "*/*/data/*.md", "examples/*/*/README.md")
HIDDEN = {"AGENTS.md"}
LINK = re.compile(r"""\]\(([^)#\s]+)|(?:src|srcset|href)="([^"#]+)""")


def repository_pages() -> list[Path]:
    """All Markdown pages, without those that are reached again through the links in src/."""
    found = {page for pattern in PAGES for page in ROOT.glob(pattern)}
    parts = {page: page.relative_to(ROOT).parts for page in found}
    return sorted(
        page for page in found if parts[page][0] != "src" and "templates" not in parts[page] and page.name not in HIDDEN
    )


def linked_files(page: Path) -> Iterator[Path]:
    """Files of the repository, other than pages, that a page links to."""
    for markdown, html in LINK.findall(page.read_text()):
        target = (page.parent / (markdown or html)).resolve()
        if target.is_file() and target.suffix != ".md" and target.is_relative_to(ROOT):
            yield target


def link_pages(folder: Path) -> None:
    pages = repository_pages()
    for file in {*pages, *(linked for page in pages for linked in linked_files(page))}:
        place = folder / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file)


def link_modules(folder: Path) -> None:
    source = ROOT / "src"
    for family in [source / "rollyard", *(each / "." for each in (source / "rollyard").iterdir() if each.is_dir())]:
        for module in family.glob("*.py") if family.name == "rollyard" else family.rglob("*.py"):
            place = folder / module.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(module.resolve())
    for parent in {parent for module in folder.rglob("*.py") for parent in module.relative_to(folder).parents}:
        if parent.parts:
            (folder / parent / "__init__.py").touch()


def on_startup(**_: object) -> None:
    # Before on_config, where mkdocstrings looks for the package.
    shutil.rmtree(MIRROR, ignore_errors=True)
    for name, link in (("pages", link_pages), ("package", link_modules)):
        (MIRROR / name).mkdir(parents=True)
        link(MIRROR / name)


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Make links to folders point to their README, as on GitHub."""

    def readme(found: re.Match[str]) -> str:
        folder = ROOT / Path(page.file.src_uri).parent / found[1]
        return f"]({found[1]}README.md)" if (folder / "README.md").is_file() else found[0]

    return re.sub(r"\]\(([\w./-]+/)\)", readme, markdown)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.docs_dir = str(MIRROR / "pages")
    return config
