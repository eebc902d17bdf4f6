"""`python -m tests.conformance`: the official MCP conformance suite against this server over HTTP, in both eras.

Needs Node 22 or newer and the npm registry. What the suite can only try on a server made for it is in `baseline.yml`;
anything else that fails, and anything in it that passes, is an error.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
ERAS = ("2026-07-28", "2025-11-25")
BASELINE = Path(__file__).with_name("baseline.yml")
_OLDEST_NODE = 22
# Of server-stateless, a whole scenario, what needs the suite's tool test_missing_capability. All else in it must pass.
_TASKS = ("lifecycle", "capability-negotiation", "wire-fields", "request-headers", "dispatch-and-envelope")
# Of the Tasks extension, what calls the suite's own tools; those that need a task of theirs follow from these.
_OF_TOOLS = frozenset(
    (
        "sep-2663-result-type-task-on-create",
        "sep-2663-tasks-get-status-working",
        "sep-2663-tasks-get-status-completed",
        "sep-2663-tool-error-uses-completed-status",
        "sep-2663-tasks-get-status-failed",
        "sep-2663-cancel-ack-empty-result",
        "tasks-cancel-terminal-idempotent-ack",
        "tasks-per-request-meta-opt-in",
        "tasks-wire-field-renames",
        "tasks-no-early-ttl-expiry",
        "tasks-no-related-task-meta-on-inlined-result",
        "tasks-headers-tolerate-mcp-method-on-tools-call",
        "sep-2663-routing-headers-accepted-on-tasks-get",
        "sep-2663-server-rejects-mismatched-mcp-name-on-tasks-get",
        "tasks-server-directed-creation-no-hint",
        "sep-2663-durable-create-strong-consistency",
    )
)
_EXCUSED = frozenset(("sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400"))


def main() -> int:
    """Serve on a free port, run the suite once an era, and return 1 when something unexpected came out."""
    if (problem := _missing()) is not None:
        print(problem, file=sys.stderr)
        return 2
    # The fixtures of the live tests, so that nothing of the caller's own runs is touched.
    from tests.support.sandbox import Sandbox  # noqa: PLC0415
    from tests.support.service import serve  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="runward-conformance-") as place:
        sandbox = Sandbox(Path(place), "runward-conformance")
        try:
            with serve(sandbox) as service:
                statuses = [_run(service.url, era, Path(place)) for era in ERAS]
                statuses += [_run_tasks(service.url, Path(place))]
                noise = "Traceback" in service.log.read_text()
        finally:
            sandbox.close()
    if noise:
        print("The server wrote a traceback.", file=sys.stderr)
    return int(any(statuses) or noise)


def _missing() -> str | None:
    """Return what is needed and not there."""
    node = shutil.which("node")
    version = (
        subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout if node else "none"
    )
    if not shutil.which("npx") or int(version.lstrip("v").partition(".")[0] or 0 if node else 0) < _OLDEST_NODE:
        return (
            f"Node {_OLDEST_NODE} or newer is needed: npm install node@24, and its bin/ first in PATH. Here: {version}"
        )
    return None


def _run(url: str, era: str, place: Path) -> int:
    print(f"\n=== {era} ===", flush=True)
    words = [SUITE, "server", "--url", url, "--requirements", era, "--expected-failures", str(BASELINE)]
    done = subprocess.run(
        ["npx", "--yes", *words, "--output-dir", str(place / era)],
        env={**os.environ, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    _, found, summary = done.stdout.partition("=== SUMMARY ===")
    print(summary.strip() if found else done.stdout[-4000:])
    checks = [
        c for file in (place / era).glob("server-server-stateless-*/checks.json") for c in json.loads(file.read_text())
    ]
    wrong = {check["id"] for check in checks if check["status"] == "FAILURE"} - _EXCUSED
    if wrong:
        print(f"Unexpected failures inside server-stateless: {', '.join(sorted(wrong))}")
    return done.returncode or int(bool(wrong))


def _run_tasks(url: str, place: Path) -> int:
    """Run the scenarios of the Tasks extension; all checks must pass that need no tools of the suite's own."""
    print("\n=== Tasks extension ===", flush=True)
    checks: dict[str, str] = {}
    for name in _TASKS:
        output = place / name
        words = [SUITE, "server", "--url", url, "--scenario", f"tasks-{name}", "--output-dir", str(output)]
        environ = {**os.environ, "NO_COLOR": "1"}
        subprocess.run(
            ["npx", "--yes", *words], env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
        )
        for file in output.rglob("checks.json"):
            checks |= {f"{name}: {check['id']}": check["status"] for check in json.loads(file.read_text())}
    failed = [check for check, status in checks.items() if status == "FAILURE"]
    wrong = [check for check in failed if check.partition(": ")[2] not in _OF_TOOLS]
    passed = sum(status == "SUCCESS" for status in checks.values())
    print(f"{passed} of {len(checks)} checks passed, {len(failed) - len(wrong)} need the suite's tools")
    if wrong or not passed:
        print(f"Unexpected failures: {', '.join(wrong) or 'nothing was checked'}")
    return int(bool(wrong) or not passed)


if __name__ == "__main__":
    sys.exit(main())
