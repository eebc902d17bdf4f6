"""The arguments of the command line. Imports nothing else: `runward --help` answers at once."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable
from typing import NoReturn

from mcp_server import __version__

# As mcp_server.record.state defines them; importing that takes longer than printing the help.
_STATES = (
    *("queued", "starting", "running", "stalled", "retrying"),
    *("finished", "failed", "killed", "timed_out", "lost", "imported"),
)


# Verbs of other programs, and the one that does it here.
_KNOWN_AS = {
    **dict.fromkeys(("status", "list", "ps", "jobs", "runs", "queue", "squeue"), "ls"),
    **dict.fromkeys(("stop", "cancel", "rm", "delete", "scancel", "abort"), "kill"),
    **dict.fromkeys(("log", "tail", "output", "cat"), "logs"),
    **dict.fromkeys(("info", "describe", "inspect"), "show"),
    **dict.fromkeys(("metrics", "curves", "tensorboard", "plot"), "tb"),
    **dict.fromkeys(("gpus", "nvidia-smi"), "gpu"),
    **dict.fromkeys(("web", "ui", "page", "dashboard", "open"), "dash"),
    **dict.fromkeys(("check", "health"), "doctor"),
    **dict.fromkeys(("why", "explain"), "diagnose"),
}
_LAUNCHES = ("run", "launch", "start", "train", "submit", "sbatch", "exec")


class _Parser(argparse.ArgumentParser):
    """Names the right verb for a wrong one, instead of all of them."""

    def error(self, message: str) -> NoReturn:
        wrong = re.match(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)", message, re.DOTALL)
        if wrong is None:
            super().error(message)
        word, known = wrong[1][:40], re.findall(r"[a-z]+", wrong[2])
        near = [_KNOWN_AS[word]] if word in _KNOWN_AS else difflib.get_close_matches(word, known, 1)
        hint = f"Did you mean runward {near[0]}?" if near else "runward --help lists the verbs."
        if word in _LAUNCHES:
            hint = "Runs are launched by agents, through the tool launch_run; runward install CLIENT gives it to one."
        self.exit(2, f"runward: there is no verb {word!r}. {hint}\n")


def list_words() -> dict[str, tuple[str, ...]]:
    """Return the words that may follow each verb, and RUN where it takes a run; for the shell's completion."""
    listed: dict[str, tuple[str, ...]] = {}
    (verbs,) = (each for each in make_parser()._actions if isinstance(each, argparse._SubParsersAction))  # noqa: SLF001
    for verb, parser in verbs.choices.items():
        words: list[str] = []
        for each in parser._actions:  # noqa: SLF001 - argparse has no other list
            words += each.option_strings or list(map(str, each.choices or ()))
            words += ["RUN"] * ("RUN" in str(each.metavar) or each.dest == "run_id")
        listed[verb] = tuple(dict.fromkeys(words))
    return listed


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _seconds(text: str) -> float:
    if not (number := float(text)) >= 0:
        raise argparse.ArgumentTypeError("must be a number of seconds")
    return number


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    parser = _Parser(
        prog="runward",
        description="Training runs that cannot get lost: an MCP server for agents, and the same for people.",
    )
    parser.add_argument("--version", action="version", version=f"runward {__version__}")
    verbs = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=argparse.ArgumentParser)

    serve = verbs.add_parser("serve", help="speak MCP over stdio (what clients start), or over HTTP")
    serve.add_argument("--http", metavar="HOST:PORT", help="serve streamable HTTP, e.g. at 127.0.0.1:8765")
    serve.add_argument(
        "--open", action="store_true", help="over HTTP without tokens: open to all users of this machine"
    )

    listing = verbs.add_parser("ls", help="list runs, newest first")
    states = ["live", "ended", *_STATES]
    listing.add_argument("--state", choices=states, metavar="STATE", help=f"only these: {', '.join(states)}")
    listing.add_argument("-n", "--limit", type=_count, default=20, help="at most N runs (20)")
    listing.add_argument("--watch", action="store_true", help="draw them again at each change, until Ctrl-C")

    top = verbs.add_parser("top", help="runs, sweeps and GPUs live: Enter opens, k stops, / filters, q leaves")
    top.set_defaults(module="top.program")

    sweep = _add_sweep(verbs)

    for command in (listing, sweep, *_add_run_verbs(verbs)):
        _add_json(command)
    _add_setup_verbs(verbs)

    dash = verbs.add_parser("dash", help="open the page in a browser: runs, curves, logs, GPUs, live")
    dash.set_defaults(module="setup.dash")
    dash.add_argument("--port", type=_count, metavar="N", help="serve it there (8765, or the next free one)")
    dash.add_argument("--no-browser", action="store_true", help="only print the link")
    dash.add_argument("--as", dest="owner", metavar="NAME", help="with the rights of this token's name")

    export = verbs.add_parser("export", help="runs or a sweep in one HTML file that opens without a server")
    export.set_defaults(module="setup.export")
    export.add_argument("runs", nargs="+", metavar="RUN", help="run or sweep, by id or name")
    export.add_argument("-o", "--output", required=True, metavar="FILE", help="the file, e.g. report.html")

    completion = verbs.add_parser("completion", help="print the completion of verbs, flags and run ids for a shell")
    completion.set_defaults(module="setup.completion")
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])

    hook = verbs.add_parser(
        "hook", help="what Claude Code and Codex ask before a command of their shell; they start it"
    )
    hook.set_defaults(module="setup.hook")

    demo = verbs.add_parser("demo", help="a real training run through a real MCP client")
    demo.set_defaults(module="setup.demo")
    demo.add_argument("--verbose", action="store_true", help="whole calls and answers, as an agent sees them")
    demo.add_argument("--steps", type=_count, default=1200, help="training steps (1200, about 15 s)")
    return parser


def _add_json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="for scripts")


def _add_run_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> Iterable[argparse.ArgumentParser]:
    """Add the verbs about runs and machines, and return those that take --json."""
    wait = verbs.add_parser("wait", help="wait until a run or a sweep has ended; exit with the run's exit code")
    wait.add_argument("run_id", metavar="RUN|SWEEP", help="of a sweep: 0 if no cell failed, else 1")
    wait.add_argument("--timeout", type=_seconds, metavar="S", help="give up after S seconds (exit status 124)")

    attach = verbs.add_parser("attach", help="see a run or a sweep live; detach with Ctrl-b d")
    attach.add_argument("run_id", metavar="RUN|SWEEP")

    logs = verbs.add_parser("logs", help="print a run's output")
    logs.add_argument("run_id")
    logs.add_argument("-n", "--tail", type=_count, default=50, metavar="N", help="the newest N lines (50)")
    logs.add_argument("--grep", metavar="REGEX", help="the lines that match instead")
    logs.add_argument("-f", "--follow", action="store_true", help="print output as it is written")
    logs.add_argument("--path", action="store_true", help="print the path of the log")

    watch = verbs.add_parser("watch", help="print what appears in a tmux session of others, until its program ended")
    watch.add_argument("session", metavar="SESSION")

    kill = verbs.add_parser("kill", help="stop a run and all it started, or a sweep, after asking")
    kill.add_argument("run_id", metavar="RUN|SWEEP")
    kill.add_argument("--reason", default="", help="kept with the run")

    records = _add_record_verbs(verbs)

    diagnose = verbs.add_parser("diagnose", help="say why a training run failed, by its log")
    diagnose.add_argument("log", metavar="LOG", help="a file, or a run_id")
    diagnose.add_argument("--exit-code", type=int, metavar="N", help="the exit code, if known")
    diagnose.add_argument("--signal", metavar="N", help="a number or a name such as SIGKILL")

    gpu = verbs.add_parser("gpu", help="health, use and leases of the GPUs")
    gpu.add_argument("--watch", action="store_true", help="refresh every two seconds, until Ctrl-C")

    hosts = verbs.add_parser("hosts", help="machines of hosts.toml that are reached by ssh, and what they have")
    hosts.add_argument("host", nargs="?", metavar="HOST", help="this one, also where a login was refused before")

    tb = verbs.add_parser("tb", help="metrics of a run or a directory")
    tb.add_argument("source", nargs="?", metavar="RUN|DIR", help="default: the newest run with metrics")
    tb.add_argument("--tags", nargs="+", metavar="GLOB", help="only these tags")
    tb.add_argument("--points", type=_count, metavar="N", help="N points of each, extremes kept")
    tb.add_argument("--plot", metavar="FILE.png", help="draw the metrics")
    tb.add_argument("--serve", action="store_true", help="open TensorBoard on them")
    return wait, logs, kill, *records, diagnose, gpu, hosts, tb


def _add_record_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> list[argparse.ArgumentParser]:
    show = verbs.add_parser("show", help="one run in one read: what ran, its settings and code, where its results are")
    show.add_argument("run_id", metavar="RUN")

    note = verbs.add_parser("note", help="keep a note on a run or sweep: in its events, and in a sweep's tables")
    note.add_argument("run_id", metavar="RUN|SWEEP|SWEEP/CELL")
    note.add_argument("verdict", choices=["keep", "discard", "inconclusive"], metavar="keep|discard|inconclusive")
    note.add_argument("text", nargs="*", help="why")

    importing = verbs.add_parser("import", help="trainings that runward did not start, as runs: curves, settings, logs")
    importing.add_argument("paths", nargs="+", metavar="DIR", help="TensorBoard, wandb, mlruns, Trackio, CSV, logs")
    importing.add_argument("--owner", metavar="NAME", help="whose they are (you)")
    importing.add_argument("--dry-run", action="store_true", help="only list what would be imported")
    pruning = verbs.add_parser("prune", help="list the records of ended runs that may go; --yes removes them")
    pruning.add_argument("runs", nargs="*", metavar="RUN|SWEEP", help="these; else all that the flags mean together")
    pruning.add_argument("--older", metavar="TIME", help="ended longer ago: 90d, 12h")
    pruning.add_argument("--failed", action="store_true", help="failed, killed or lost")
    pruning.add_argument("--keep-best", type=_count, metavar="N", help="but for the best N of each directory")
    pruning.add_argument("--metric", metavar="TAG", help="by which they are best (the one that most have)")
    pruning.add_argument("--checkpoints", action="store_true", help="the runs' checkpoints too, which else stay")
    pruning.add_argument("--yes", action="store_true", help="remove what is listed without it")

    added = [show, note, importing, pruning]
    for verb in added:
        verb.set_defaults(module="records")
    return added


def _add_sweep(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    sweep = verbs.add_parser("sweep", help="list sweeps, newest first; or one: its state, and its cells ranked")
    sweep.add_argument("sweep", nargs="?", metavar="SWEEP", help="id, or name of the newest")
    export = sweep.add_mutually_exclusive_group()
    export.add_argument("--csv", action="store_true", help="its cells as CSV: a row each, as pandas reads it")
    export.add_argument("--latex", action="store_true", help="its settings as a LaTeX table, the best in bold")
    export.add_argument("--plot", action="store_true", help="draw it: curves with a band over seeds, means, settings")
    export.add_argument("--diff", metavar="TRIAL", help="the change that a trial of an open sweep makes: t3")
    sweep.add_argument(
        "-o", "--output", metavar="FILE", help="write the export there; of --plot .png, .svg or .pdf (SWEEP.png)"
    )
    sweep.add_argument("-n", "--limit", type=_count, default=20, help="at most N sweeps (20)")
    return sweep


def _add_setup_verbs(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = verbs.add_parser("doctor", help="check what runward needs on this machine")
    _add_json(doctor)
    token = verbs.add_parser("token", help="access to the server over HTTP: one token an agent")
    actions = token.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("add", help="make a token, and print it once").add_argument("name")
    _add_json(actions.add_parser("ls", help="list the names that have a token"))
    actions.add_parser("rm", help="remove a token").add_argument("name")

    notify = verbs.add_parser("notify", help="notices of runs by webhook or command, as config.toml names them")
    sending = notify.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_json(sending.add_parser("test", help="send one to every target"))

    installing = verbs.add_parser("install", help="register this server with a client, and install agents or skills")
    removing = verbs.add_parser("uninstall", help="take out of a client what install put there")
    for verb, module in ((doctor, "doctor"), (token, "token"), (notify, "notify"), (removing, "install")):
        verb.set_defaults(module=f"setup.{module}")
    installing.set_defaults(module="setup.install")
    for command in (installing, removing):
        command.add_argument("client", choices=["claude", "codex", "opencode", "inspector"])
        command.add_argument("--project", action="store_true", help="this directory's project instead of this user")
        command.add_argument("--yes", action="store_true", help="do not ask; changes are shown all the same")
    passed = "a variable that Codex shall pass on by name, e.g. of a secret; may be repeated"
    installing.add_argument("--env", action="append", default=[], metavar="NAME", help=passed)
    approved = "Codex shall not ask before launch_run starts a command"
    installing.add_argument("--approve-launches", action="store_true", help=approved)

    monitor = verbs.add_parser(
        "monitor", help="print a line for each news of this directory's runs that no agent knows"
    )
    monitor.set_defaults(module="setup.monitor")
    monitor.add_argument("--conversation", metavar="NAME", help="tell this one by COMMAND, until no run of it lives")
    monitor.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="gets the news as its last word")
