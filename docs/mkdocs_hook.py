"""What the site (`make site`) does with links out of docs/: README is a page of it, other files are named only."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files  # type: ignore[import-not-found]

README = Path(__file__).parents[1] / "README.md"
TO_README = re.compile(r"\]\(\.\./README\.md")
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def on_files(files: Files, config: Any) -> Files:
    """Add README, whose links lead into docs/ here."""
    text = README.read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](", text).replace('src="docs/', 'src="../')
    text = re.sub(r"\[([^\]]+)\]\((?!https?://|[\w-]+\.(?:md|svg))[^)]*\)", r"\1", text)
    text = re.sub(r"\[([^\]]+)\]\((?:CONTRIBUTING|SECURITY|CHANGELOG)\.md\)", r"\1", text)
    files.append(File.generated(config, "readme.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to README lead to that page; of each other link to a file beside docs/ only the text stays."""
    return OUTSIDE.sub(r"\1", TO_README.sub("](readme.md", markdown))
