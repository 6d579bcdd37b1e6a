"""A hook of mkdocs: files of the project that the documentation links to, as pages of the site.

The README and the examples lie outside `docs/`. Each becomes a page, and links to it lead there.
"""

import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
README = "project.md"
_LINK = re.compile(r"\]\((?P<target>[^):#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    files.append(File.generated(config, README, content=(ROOT / "README.md").read_text()))
    for example in sorted((ROOT / "examples").rglob("*.py")):
        place = example.relative_to(ROOT).as_posix()
        content = f"# {example.name}\n\n```python\n{example.read_text()}```\n"
        files.append(File.generated(config, _page(place), content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links to such files to their pages."""
    source = PurePosixPath(page.file.src_uri)
    # The README's links are seen from the project's folder, those of pages from docs/.
    folder = ROOT if str(source) == README else ROOT / "docs" / source.parent

    def lead(link: re.Match[str]) -> str:
        target = (folder / link["target"]).resolve()
        if not target.is_relative_to(ROOT):
            return link[0]
        inside = _page(target.relative_to(ROOT).as_posix())
        depth = len(source.parents) - 1
        return f"]({'../' * depth}{inside}{link['anchor'] or ''})"

    return _LINK.sub(lead, markdown)


def _page(path: str) -> str:
    """The page of a file, both seen from their roots."""
    if path == "README.md":
        return README
    if path.startswith("examples/"):
        return str(PurePosixPath(path).with_suffix(".md"))
    return path.removeprefix("docs/")
