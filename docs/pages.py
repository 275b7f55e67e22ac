"""Pages that live elsewhere in the repository, copied into ``docs`` with links that fit their place."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["gather"]

# Where the pages of these files are, seen from docs/.
PAGES = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "results/README.md": "results/index.md",
}


def gather(root: Path, docs: Path) -> None:
    """Copy the pages into ``docs``; files that have not changed are not written again."""
    results = sorted(file.name for file in (root / "results").glob("*.md") if file.name != "README.md")
    pages = {f"results/{name}": f"results/{name}" for name in results} | PAGES
    for source, target in pages.items():
        text = _with_figures(_relinked((root / source).read_text(encoding="utf-8"), source, pages))
        if source == "results/README.md":
            text += "\n".join(["", "```{toctree}", ":hidden:", "", *results, "```", ""])
        _put(docs / target, text.encode())
    for figure in (root / "results").glob("*.svg"):
        _put(docs / "results" / figure.name, figure.read_bytes())


def _relinked(text: str, source: str, pages: dict[str, str]) -> str:
    """The text with its links to other files of the repository pointing to their pages."""

    def moved(match: re.Match[str]) -> str:
        address, anchor = match[1], match[2] or ""
        if "://" in address or not address:
            return match[0]
        file = _normal(f"{Path(source).parent}/{address}")
        place = pages.get(file, file.removeprefix("docs/"))
        depth = pages[source].count("/")
        return f"]({'../' * depth}{place}{anchor})"

    return re.sub(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", moved, text)


def _with_figures(text: str) -> str:
    """Show the figures that a page links to, below the paragraph that does."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        paragraphs.append(paragraph)
        if not paragraph.startswith("|"):
            paragraphs += [f"![{name}]({path})" for path, name in re.findall(r"\]\((\S*?(\w+)\.svg)\)", paragraph)]
    return "\n\n".join(paragraphs)


def _normal(path: str) -> str:
    parts: list[str] = []
    for part in Path(path).parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _put(file: Path, content: bytes) -> None:
    if not file.exists() or file.read_bytes() != content:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
