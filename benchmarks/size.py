"""How large each folder of the server and the agent is, in lines and in tokens without comments.

python -m benchmarks.size
"""

import tokenize
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]

NO_TOKENS = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def size(files: Iterable[Path]) -> tuple[int, int]:
    """Lines and tokens of some files."""
    lines = tokens = 0
    for path in files:
        lines += len(path.read_text(encoding="utf-8").splitlines())
        with path.open("rb") as file:
            tokens += sum(token.type not in NO_TOKENS for token in tokenize.tokenize(file.readline))
    return lines, tokens


def main() -> None:
    """Print a row for each folder, and one for each package."""
    for package in (ROOT / "rendezvous/hetrdzv", ROOT / "agent/hetagent"):
        for folder in sorted(path for path in package.iterdir() if (path / "__init__.py").exists()):
            print("{:>7,} {:>8,}  {}/".format(*size(folder.rglob("*.py")), folder.relative_to(ROOT)))
        print("{:>7,} {:>8,}  {}/*.py".format(*size(package.glob("*.py")), package.relative_to(ROOT)))
        print("{:>7,} {:>8,}  {}".format(*size(package.rglob("*.py")), package.relative_to(ROOT)))


if __name__ == "__main__":
    main()
