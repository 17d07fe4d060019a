"""Flags of hetagent that were typed after the script, which gets them then."""

import ast
import re
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence

MUST_BE_OURS = frozenset({"--group", "--nnodes", "--server", "--standalone"})
"""Flags of one word that scripts hardly have; those of several words do not need to be here."""

MOST_READ = 1 << 20
"""How much of a script is read (bytes)."""

OPTION = re.compile(r"--?([\w-]+)(?:[=/].*)?")
"""A string that names an option: `--group`, `--group=`, `--cuda/--no-cuda` (click)."""

PARSED = frozenset({"args", "arguments", "flags", "namespace", "opt", "options", "opts"})
"""What scripts call the options that a parser, perhaps in another file, has found: `args.device`."""

FROM_SIGNATURES = frozenset({"Fire", "HfArgumentParser", "LightningCLI", "jsonargparse", "typer", "tyro"})
"""Names in a script whose options are the parameters of its functions and the fields of its classes."""


def notes(args: Namespace, flags: Iterable[str]) -> Sequence[str]:
    """What to say of flags of ours after the script, unless it is likely to have such ones itself.

    Args:
        flags: all of ours.
    """
    typed = {word.partition("=")[0] for word in args.training_script_args if word.startswith("--")}
    ours = typed.intersection(flags) - {"--help", "--version"}
    if not ours:
        return ()
    script = args.training_script
    tree = None if args.module or args.no_python else _parsed(script)
    if tree is None:
        ours = {flag for flag in ours if flag in MUST_BE_OURS or "-" in flag[2:]}
    else:
        taken = options_of(tree)
        ours = {flag for flag in ours if _identifier(flag[2:]) not in taken}
    if not ours:
        return ()
    named, them = " and ".join(sorted(ours)), "it" if len(ours) == 1 else "them"
    go = "goes" if len(ours) == 1 else "go"
    text = f"warning: {named} after {script} {go} to the script; if hetagent should get {them}"
    return (f"{text}, put {them} before {script}",)


def options_of(script: ast.Module) -> frozenset[str]:
    """The names that a script's options may have, as identifiers: `log_dir` for `--log-dir`.

    That a word occurs in it says nothing: every script of DDP has `destroy_process_group(group=...)`.
    """
    nodes = list(ast.walk(script))
    kinds = (_named, _declared) if any(_name(node) in FROM_SIGNATURES for node in nodes) else (_named,)
    return frozenset(name for node in nodes for kind in kinds for name in kind(node))


def _named(node: ast.AST) -> Iterator[str]:
    """The option that an expression names, or takes from parsed ones."""
    match node:
        case ast.Constant(value=str(text)) if (option := OPTION.fullmatch(text)) is not None:
            yield _identifier(option[1])
        case ast.Attribute(value=parsed, attr=name) if _holds_options(_name(parsed)):
            yield name


def _declared(node: ast.AST) -> Iterator[str]:
    """The parameter or the fields that a node declares."""
    match node:
        case ast.arg(arg=name):
            yield name
        case ast.ClassDef(body=body):
            yield from (
                line.target.id
                for line in body
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
            )


def _name(node: ast.AST) -> str:
    """What a name or the last part of a dotted one says; empty: it is neither."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _holds_options(name: str) -> bool:
    """Whether a variable is likely to hold parsed options: `args`, `FLAGS`, `model_args`."""
    return name.lower().rpartition("_")[2] in PARSED


def _identifier(option: str) -> str:
    return option.replace("-", "_")


def _parsed(script: str) -> ast.Module | None:
    """The script's syntax tree; None: it cannot be read."""
    try:
        with open(script, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script's own, which Python shows when it runs
            return ast.parse(file.read(MOST_READ))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
