"""The command: `runward`, or `python -m mcp_server`."""

import codecs
import contextlib
import gc
import io
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

from mcp_server.errors import BadArgument, RunwardError
from mcp_server.system.own_process import close_memory, take_umask


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    if sys.platform == "win32":
        print("runward needs Linux (or macOS, with limits): on Windows use it inside WSL.", file=sys.stderr)
        return 2
    _print_odd_names_readably()
    take_umask()
    words = list(sys.argv[1:] if argv is None else argv)
    if not words and not sys.stdin.isatty():
        words = ["serve"]  # how MCP clients start a server
    # Without the arguments of other verbs both take half the time: a hook comes before each command of an agent, and a
    # client waits for its server.
    if words == ["hook"]:
        gc.disable()
        return int(import_module("mcp_server.cli.setup.hook").run())
    arguments: Any = SimpleNamespace(command="serve", http=None, open=False)
    if words != ["serve"]:
        parser = import_module("mcp_server.cli.parser").make_parser()
        arguments = parser.parse_args(words)
    if arguments.command is None:
        parser.print_help()
        return 0
    try:
        if arguments.command == "serve":
            return _serve(arguments.http, is_open=arguments.open)
        # Only the module of the verb: a verb imports what it needs, and the others cost nothing.
        module = getattr(arguments, "module", arguments.command)
        return int(import_module(f"mcp_server.cli.{module}").run(arguments))
    except RunwardError as error:
        print(f"runward: {import_module('mcp_server.cli.output').name_verbs(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # e.g. `runward logs … | head`
        sys.stderr.close()
        return 0


def _serve(address: str | None, *, is_open: bool) -> int:
    """Serve over stdio, or over HTTP at ``address``; ``is_open``: to every user of this machine."""
    close_memory()
    if address:
        _import_server("mcp_server.serve.http").serve_http(address, is_open=is_open)
    elif is_open:
        raise BadArgument("--open", "it belongs to --http HOST:PORT.")
    elif (status := _keep_server()) is not None:
        return status
    else:
        _import_server("mcp_server.serve.app").serve_stdio()
    return 0


def _keep_server() -> int | None:
    """Become the parent of a server, and return its exit status; None in the process that serves."""
    answers = import_module("mcp_server.serve.first_answers").FirstAnswers()
    status: int | None = import_module("mcp_server.system.server_keeper").keep_server(answers.find)
    return status


def _print_odd_names_readably() -> None:
    r"""Let a name that is no UTF-8 be printed as ``donn\xe9es``: it would end the command, or break the terminal."""
    codecs.register_error("runward", _escape_unencodable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # of a stream whose file was replaced beneath it
                stream.reconfigure(errors="runward")


def _escape_unencodable(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)  # noqa: S101 - only output is written with it
    escape = import_module("mcp_server.text.invisible").escape_unencodable
    return str(escape(error.object[error.start : error.end])), error.end


def _import_server(name: str) -> ModuleType:
    """Import a module without garbage collections, which took a tenth of the server's start: it stays for good."""
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.enable()


if __name__ == "__main__":
    sys.exit(main())
