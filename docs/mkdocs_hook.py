"""What the site (`make site`) does with links out of docs/: they become their text, since a site has no repository."""

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Of each link to a file beside docs/ only the text stays."""
    return OUTSIDE.sub(r"\1", markdown)
