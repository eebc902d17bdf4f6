"""The head of a Ray cluster as its Jobs API shows it, with real processes as jobs. Words and codes are Ray 2.60's."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mcp_server.system import processes

GPUS = 2.0
_WAITS = (
    "Job has not started yet. It may be waiting for resources (CPUs, GPUs, memory, custom resources) to become "
    "available."
)


class FakeRay:
    """One head with two GPUs. ``submitted``: the requests as they came.

    ``can_withdraw``: whether a job that kills the actor of another, which waits, gets as far as that.
    """

    def __init__(self) -> None:
        self.can_withdraw = True
        self.jobs: dict[str, dict[str, Any]] = {}
        self.submitted: list[dict[str, Any]] = []
        self.queries = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: dict[str, Path] = {}
        self._log_directory = Path(tempfile.mkdtemp(prefix="fake-ray-"))
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.open()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def open(self) -> None:
        """Answer, at the same port as before."""
        head = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(*head.get(self.path))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self._answer(*head.post(self.path, json.loads(body)))

            def do_DELETE(self) -> None:
                name = self.path.split("/")[3]
                self._answer(200, {"deleted": head.jobs.pop(name)["status"] in ("FAILED", "STOPPED", "SUCCEEDED")})

            def _answer(self, code: int, value: object) -> None:
                data = (value if isinstance(value, str) else json.dumps(value)).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        ThreadingHTTPServer.allow_reuse_address = True
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Answer no more; the jobs go on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def end(self) -> None:
        self.close()
        for process in self._processes.values():
            process.poll()
        for process in self._processes.values():
            if process.returncode is None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        shutil.rmtree(self._log_directory, ignore_errors=True)

    def forget(self) -> None:
        """Be a head that was restarted: its jobs ended with it, all at once, so that none sees another's end."""
        with self._lock:
            for name in self.jobs:
                if (process := self._processes.get(name)) is not None and process.poll() is None:
                    paused: set[processes.Process] = set()
                    while new := {*_members(process.pid)} - paused:
                        for member in new:
                            processes.send_signal(member, signal.SIGSTOP)
                        paused |= new
                    for member in paused:
                        processes.send_signal(member, signal.SIGKILL)
                    process.wait()
            self.jobs.clear()

    def be_another(self, name: str) -> None:
        """Be a head that was restarted, and has a job of somebody else under a name that one of its jobs had."""
        self.forget()
        self.post("/api/jobs/", {"submission_id": name, "metadata": {}, "entrypoint": "echo theirs; sleep 986"})

    def get(self, path: str) -> tuple[int, object]:
        self.queries += 1
        if path == "/api/cluster_status":
            usage = {"GPU": [0.0, GPUS], "CPU": [0.0, 2.0], "objectStoreMemory": [0.0, 1e8]}
            return 200, {"result": True, "data": {"clusterStatus": {"loadMetricsReport": {"usage": usage}}}}
        name = path.split("/")[3]
        if path.endswith("/logs") and name in self._logs:
            return 200, {"logs": self._logs[name].read_text(errors="replace")}
        with self._lock:
            self._refresh(name)
            return (200, dict(self.jobs[name])) if name in self.jobs else (404, f"Job {name} does not exist")

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, object]:
        if path.endswith("/stop"):
            return self._stop(path.split("/")[3])
        name = body["submission_id"]
        with self._lock:
            self.submitted.append(body)
            if name in self.jobs:
                return 500, f"Traceback …\nValueError: Job with submission_id {name} already exists.\n"
            if "refuse" in body["metadata"]:
                return 500, "Traceback …\nValueError: no such resource\n"
            self.jobs[name] = {
                "type": "SUBMISSION",
                "submission_id": name,
                "status": "PENDING",
                "message": _WAITS,
                "metadata": body["metadata"],
            }
            if "ray.kill(" in body["entrypoint"]:
                self._withdraw(name, body["entrypoint"])
            elif body.get("entrypoint_num_gpus", 0) <= GPUS:
                self._start(name, body)
        return 200, {"job_id": name, "submission_id": name}

    def _withdraw(self, helper: str, entrypoint: str) -> None:
        self.jobs[helper] |= {"status": "SUCCEEDED" if self.can_withdraw else "FAILED", "message": "Job finished …"}
        words = "Job supervisor actor died: The actor died unexpectedly before finishing this task.\n\tclass_name: …"
        for name in shlex.split(entrypoint.rpartition("exec")[2])[3:]:
            if self.can_withdraw and self.jobs[name]["status"] == "PENDING":
                self.jobs[name] |= {"status": "FAILED", "message": words, "end_time": int(1000 * time.time())}

    def give_up(self, name: str) -> None:
        """Let a job have waited for as long as the head lets one wait."""
        self.jobs[name] |= {
            "status": "FAILED",
            "error_type": "JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
            "message": "Job supervisor actor failed to start within 900.0 seconds. This timeout can be configured by …",
            "end_time": int(1000 * time.time()),
        }

    def release(self, name: str) -> subprocess.Popen[bytes]:
        """Start a job that waits for GPUs, as if there were more of them now."""
        with self._lock:
            return self._start(name, next(body for body in self.submitted if body["submission_id"] == name))

    def _start(self, name: str, body: dict[str, Any]) -> subprocess.Popen[bytes]:
        self.jobs[name] |= {"status": "RUNNING", "message": "Job is currently running."}
        environ = {**os.environ, "RAY_ADDRESS": "127.0.0.1:6399", "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}
        environ |= {"CUDA_VISIBLE_DEVICES": "1"} if body.get("entrypoint_num_gpus") else {}
        log = self._logs[name] = self._log_directory / name
        with log.open("wb") as output:
            self._processes[name] = subprocess.Popen(
                body["entrypoint"], shell=True, start_new_session=True, env=environ, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output,
            )  # fmt: skip
        return self._processes[name]

    def _refresh(self, name: str) -> None:
        process, job = self._processes.get(name), self.jobs.get(name)
        if job is None or process is None or job["status"] != "RUNNING" or (code := process.poll()) is None:
            return
        words = (
            ("SUCCEEDED", "Job finished successfully.")
            if code == 0
            else ("FAILED", f"Job entrypoint command failed with exit code {code}, last available logs …:\n")
        )
        job |= {"status": words[0], "message": words[1], "driver_exit_code": code, "end_time": int(1000 * time.time())}

    def _stop(self, name: str) -> tuple[int, object]:
        with self._lock:
            self._refresh(name)
            job, process = self.jobs.get(name), self._processes.get(name)
            if job is None:
                return 404, f"Job {name} does not exist"
            if job["status"] == "PENDING":  # Ray asks an actor that does not exist yet
                return 200, {"stopped": True}
            if job["status"] != "RUNNING":
                return 200, {"stopped": False}
            job |= {"status": "STOPPED", "message": "Job was intentionally stopped."}
        if process is not None:
            members = _members(process.pid)
            for number in (signal.SIGTERM, signal.SIGKILL):
                for member in members:
                    processes.send_signal(member, number)
            process.wait()
        return 200, {"stopped": True}


def _members(pid: int) -> list[processes.Process]:
    return [process for process in (processes.find_process(pid), *processes.descendants(pid)) if process]
