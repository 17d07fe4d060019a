"""Runs a worker's Python script exactly as `python` would, and records the exception that ends it.

    python -u .../runner.py [-m] SCRIPT_OR_MODULE ARGS...

The script sees what it would see if started by `python -u [-m] SCRIPT_OR_MODULE ARGS...`: arguments, `sys.path`,
`__main__` and all that depends on it (pickle, spawned children), exit status, tracebacks. There are two differences: a
crash prints a traceback (faulthandler), and an exception that ends the script is recorded in the file that
TORCHELASTIC_ERROR_FILE names, in the format of torch's ErrorHandler, so that every node can show it.

Three variables, FILE:ARGUMENT each, name files with more to do. In that of HET_STARTED_AHEAD, `wait_for_round` returns
once the round of a process is known that was started ahead of it. In the others `begin` gets the argument: in that of
HET_BEFORE_SCRIPT before the script's first line, of HET_AFTER_TORCH once the script has imported torch.distributed.

This file is started by its path, and imports nothing that a bare interpreter has not already imported.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType
    from typing import Any, NoReturn

AHEAD, BEFORE, AFTER = "HET_STARTED_AHEAD", "HET_BEFORE_SCRIPT", "HET_AFTER_TORCH"
"""The variables that name files, see above."""

SNAPSHOTS = "hetagent.snapshots"
"""What saves the state of a script that has imported it, before an exception unwinds."""

USAGE = 2
"""The status of a script that does not take its arguments, as argparse has it."""


def main() -> None:
    """Remove all traces of this file, then run the script."""
    started_as = list(sys.orig_argv)
    sys.orig_argv.remove(sys.argv[0])
    del sys.argv[0]
    if not sys.flags.safe_path:  # -P, -I
        del sys.path[0]  # this file's directory
    if sys.stderr is not None:
        import faulthandler

        faulthandler.enable(all_threads=True)
    run = _prepare_script()
    start_over = _call_hook_file(AHEAD, "wait_for_round", started_as)
    _call_hook_file(BEFORE, "begin")
    if AFTER in os.environ:
        _call_after_torch_import(*os.environ.pop(AFTER).split(os.pathsep, 1))
    _run_recorded(run, start_over)


def _call_hook_file(variable: str, function: str, *more: object) -> "Any":
    """Call a function of the file that a variable names, if it is set, with the argument in it; what that returns."""
    if variable in os.environ:
        path, argument = os.environ.pop(variable).split(os.pathsep, 1)
        return getattr(_load_file(path), function)(argument, *more)
    return None


def _prepare_script() -> "Callable[[], None]":
    """Do all that comes before the script's first line; return what runs the script."""
    fresh = _replace_main()
    if sys.argv[0] == "-m":
        module = sys.argv.pop(1)
        _prepend_path(os.getcwd())
        return lambda: _run_as_module(module, alter_argv=True)
    path = os.path.join(os.getcwd(), sys.argv[0])  # as the interpreter does it, without normalizing it
    if _is_importable(path):
        sys.path.insert(0, path)  # a directory or zip file: even with -P, since it is the program
        return lambda: _run_as_module("__main__", alter_argv=False)
    _prepend_path(os.path.dirname(os.path.realpath(path)))
    return lambda: _run_file(path, fresh)


def _load_file(path: str) -> "Any":
    """The module in a file, loaded without a trace in `sys.path` or `sys.modules`."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _call_after_torch_import(path: str, argument: str) -> None:
    """Have the file at `path` begin, now or once the script imports torch; whatever fails, fails silently."""
    pid = os.getpid()

    class Finder:
        """Finds nothing; sees that torch.distributed, which loads its C++ half first, is imported, and goes away."""

        @staticmethod
        def find_spec(name: str, path_: "Any" = None, target: "Any" = None) -> None:
            if name.startswith("torch.distributed."):
                sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not Finder]
                if os.getpid() == pid:
                    begin()

    def begin() -> None:
        try:  # noqa: SIM105 - contextlib would be one module more for the script to see
            _load_file(path).begin(argument)
        except Exception:
            pass

    if "torch.distributed" in sys.modules:
        begin()
    else:
        sys.meta_path.insert(0, Finder)


def _replace_main() -> dict[str, object]:
    """Replace `__main__` by a new module with what the interpreter puts there; return its namespace."""
    module = type(sys)("__main__")
    namespace = module.__dict__
    namespace.update({name: value for name, value in globals().items() if name[:2] == name[-2:] == "__"})
    namespace.update(__doc__=None)
    # It would be shared with this file; later versions of Python create it when it is first used.
    if "__annotations__" in namespace:
        namespace.update(__annotations__={})
    sys.modules["__main__"] = module
    return namespace


def _run_as_module(name: str, alter_argv: bool) -> None:
    """Do what `python -m NAME` does, or for `__main__` what `python DIRECTORY` does."""
    main = sys.modules["__main__"].__dict__
    main.pop("__file__", None)
    main.pop("__cached__", None)
    main["__loader__"] = None
    import runpy

    # Private, but it is the function that the interpreter itself has called since Python 2.6.
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _run_file(path: str, namespace: dict[str, object]) -> None:
    """Do what `python PATH` does."""
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        message = f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}"
        _write_record(message, message, permanent=True)
        print(f"{sys.orig_argv[0]}: {message}", file=sys.stderr)
        sys.exit(2)
    namespace["__file__"] = path
    if path.endswith(".pyc"):
        from _frozen_importlib_external import SourcelessFileLoader

        namespace["__loader__"] = loader = SourcelessFileLoader("__main__", path)
        code = loader.get_code("__main__")
        assert code is not None
    else:
        namespace["__loader__"] = type(globals()["__loader__"])("__main__", path)
        code = compile(source, path, "exec", dont_inherit=True)
    exec(code, namespace)


def _run_recorded(run: "Callable[[], None]", start_over: "Callable[[str], NoReturn] | None") -> None:
    """Run the script; record the exception that ends it, and let the interpreter handle it, without our frames."""
    pid = os.getpid()  # a child that the script forks may end here as well, but it is not the worker
    try:
        run()
    except BaseException as error:
        theirs = error.__traceback__
        while theirs is not None and theirs.tb_frame.f_code.co_filename == __file__:
            theirs = theirs.tb_next
        if os.getpid() == pid:
            _record_end(error, theirs, start_over)
        _hide_our_frames(theirs)
        raise
    if os.getpid() == pid:
        _save_state()


def _record_end(
    error: BaseException,
    theirs: "TracebackType | None",
    start_over: "Callable[[str], NoReturn] | None",
) -> None:
    """Record what has ended the script, and have it save its last step.

    Where imports fail, `start_over` does without what was imported ahead, which may have made them fail.
    """
    if not _is_normal_exit(error):
        if start_over is not None and _is_in_imports(theirs):
            start_over(type(error).__name__)
        _record_error(error.with_traceback(theirs), permanent=_is_permanent(error, theirs))
    elif refusal := _find_argparse_error(error, theirs):
        _write_record(refusal, refusal, permanent=True)
    _save_state()  # after the record, whose time is that of the exception


def _save_state() -> None:
    """Have a script save its last step if it keeps snapshots: others may go on from there, however it has ended."""
    save_now = getattr(sys.modules.get(SNAPSHOTS), "save_now", None)
    if save_now is not None:
        save_now(ends=True)


def _is_normal_exit(error: BaseException) -> bool:
    """Whether there is nothing to record: an exit with a number, or Ctrl-C, but not `sys.exit("text")`."""
    if isinstance(error, SystemExit):
        return error.code is None or isinstance(error.code, int)
    return isinstance(error, KeyboardInterrupt)


def _find_argparse_error(error: BaseException, traceback: "TracebackType | None") -> str:
    """What argparse said as it ended the script, which does not take its arguments; empty: that is not how it ended."""
    try:
        *_, last = _list_frames(traceback)
        is_refusal = isinstance(error, SystemExit) and error.code == USAGE
        if is_refusal and last.f_globals.get("__name__") == "argparse":
            return str(last.f_locals.get("message") or "").strip()
    except Exception:
        pass  # as if it had ended in another way
    return ""


def _is_permanent(error: BaseException, traceback: "TracebackType | None") -> bool:
    """Whether the script would end in the same way again.

    That is, by a syntax error or an import that failed, before its first line or outside any other statement. Or by a
    name that it does not have, in a line outside any function.
    """
    try:
        if isinstance(error, SystemExit):  # `python -m`: no such module
            frames = _list_frames(traceback)
            return bool(frames) and all(frame.f_globals.get("__name__") == "runpy" for frame in frames)
        if isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
            *_, last = _list_frames(traceback)
            return last.f_code.co_name == "<module>" and last.f_globals is sys.modules["__main__"].__dict__
        return isinstance(error, (SyntaxError, ImportError)) and _is_in_imports(traceback)
    except Exception:
        return False


def _list_frames(traceback: "TracebackType | None") -> "list[FrameType]":
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return frames


def _is_in_imports(traceback: "TracebackType | None") -> bool:
    """Whether an exception came before the script's first line, or in an import that is in no other statement."""
    import ast

    main = sys.modules["__main__"].__dict__
    while traceback is not None and traceback.tb_frame.f_globals is not main:
        traceback = traceback.tb_next
    if traceback is None:
        return True
    code, line = traceback.tb_frame.f_code, traceback.tb_lineno
    try:
        with open(code.co_filename, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, ValueError):  # it is not in a file
        return False
    imports = [each for each in tree.body if isinstance(each, (ast.Import, ast.ImportFrom))]
    return code.co_name == "<module>" and any(
        each.lineno <= line <= (each.end_lineno or line) for each in imports
    )


def _hide_our_frames(theirs: "TracebackType | None") -> None:
    """Have the script's excepthook print `theirs`, since raising the exception again adds our frames to it."""
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        return

    def print_theirs(kind: type[BaseException], error: BaseException, _: "TracebackType | None") -> None:
        sys.excepthook = hook
        sys.last_traceback = theirs
        hook(kind, error.with_traceback(theirs), theirs)

    sys.excepthook = print_theirs


def _record_error(error: BaseException, *, permanent: bool) -> None:
    try:
        import traceback

        stack = "".join(traceback.format_exception(error))
        if permanent and isinstance(error, SystemExit):
            stack = str(error)  # of runpy's own; its frames are not the script's
        _write_record(f"{type(error).__name__}: {error}", stack, permanent=permanent)
    except Exception:
        pass  # an exception that cannot even be formatted; the interpreter says so on stderr


def _write_record(message: str, stack: str, *, permanent: bool = False) -> None:
    """Write the error file, if the agent wants one; what torch's `@record` has written stays."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    import json
    import time

    now = time.time()
    extra = {"py_callstack": stack, "timestamp": str(int(now))}
    record: dict[str, object] = {"message": {"message": message, "extraInfo": extra}}
    record["raised_at"] = now  # torch leaves out the fraction
    if permanent:
        record["permanent"] = True
    try:
        if os.path.exists(path):
            with open(path) as file:
                record.update(json.load(file))
        with open(f"{path}.new", "w") as file:
            json.dump(record, file)
        os.replace(f"{path}.new", path)
    except (OSError, ValueError, TypeError):
        pass


def _is_importable(path: str) -> bool:
    """Whether modules can be imported from it: a directory or a zip file."""
    for hook in sys.path_hooks:
        try:
            hook(path)
        except ImportError:
            continue
        return True
    return False


def _prepend_path(directory: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, directory)


if __name__ == "__main__":
    main()
