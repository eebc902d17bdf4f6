"""prompts/, agents/ and the runs as MCP resources, and completion, through a client in memory."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, PromptReference, ResourceTemplateReference, TextResourceContents

from mcp_server.record.events import EventLog
from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.resources import documents
from mcp_server.resources.register import ResourceServer
from mcp_server.tools.support.context import ServerContext
from tests.support.sweeps import cell_events, write_sweep

pytestmark = pytest.mark.anyio

GUIDES = [
    *(
        "agent_rl",
        "clients",
        "clusters",
        "evaluation",
        "gpus",
        "hosts",
        "how_it_works",
        "http",
        "judgement",
        "launching",
    ),
    *(
        "metrics",
        "monitoring",
        "other_machines",
        "ray",
        "recovery",
        "reference",
        "research",
        "robot_learning",
        "rules",
        "services",
        "settings",
        "sweep",
        "tools",
    ),
    "troubleshooting",
]
AGENTS = ["blueprint-executor", "eval-monitor", "experiment-runner", "launcher-monitor", "researcher"]


@asynccontextmanager
async def client(home: Path) -> AsyncIterator[Client]:
    server = ResourceServer("test", ServerContext.of({"RUNWARD_HOME": str(home)}))
    async with Client(server) as client:
        yield client


def make_run(home: Path, run_id: str, minute: int, output: str = "", tags: Sequence[str] = ()) -> None:
    """Write the directory of a failed run, as its supervisor does."""
    run = home / "runs" / run_id
    (run / "attempts" / "1").mkdir(parents=True)
    spec = {"layout": 1, "run_id": run_id, "name": "cfm", "created_at": f"2026-11-21T10:{minute:02}:00Z"}
    spec["tags"] = list(tags)
    (run / "spec.json").write_text(json.dumps(spec))
    EventLog(run / "events.jsonl").append("started", "The command runs.")
    EventLog(run / "events.jsonl").append("ended", "failed: exit code 3.", state="failed", exit_code=3)
    (run / "attempts" / "1" / "output.log").write_text(output)


async def read(home: Path, uri: str) -> TextResourceContents:
    async with client(home) as c:
        content = (await c.read_resource(uri)).contents[0]
    assert isinstance(content, TextResourceContents)
    return content


async def refusal(home: Path, uri: str) -> str:
    async with client(home) as c:
        with pytest.raises(MCPError) as refused:
            await c.read_resource(uri)
    assert refused.value.code == INVALID_PARAMS
    return refused.value.message


async def complete(
    home: Path, reference: ResourceTemplateReference | PromptReference, name: str, value: str
) -> list[str]:
    async with client(home) as c:
        return (await c.complete(reference, {"name": name, "value": value})).completion.values


# --- resources


async def test_every_document_is_listed_with_a_description(tmp_path: Path) -> None:
    async with client(tmp_path) as c:
        listed = (await c.list_resources()).resources
        templates = (await c.list_resource_templates()).resource_templates
    assert {resource.uri for resource in listed} == {
        *("blueprint://template", "blueprint://guide"),
        *(f"guide://{name}" for name in GUIDES),
        *(f"agent://{name}" for name in AGENTS),
        "ui://runward/runs",
    }
    assert all(resource.description and resource.title for resource in listed)
    assert [template.uri_template for template in templates] == [
        *("agent://{name}", "guide://{name}", "blueprint://{name}"),
        *("run://{run_id}", "run://{run_id}/log", "run://{run_id}/diff/{other}"),
        *("sweep://{name}", "sweep://{name}/{trial}"),
    ]


@pytest.mark.parametrize(
    "uri",
    ["blueprint://template", "blueprint://guide", *(f"guide://{g}" for g in GUIDES), *(f"agent://{a}" for a in AGENTS)],
)
async def test_a_document_is_served_without_its_front_matter(tmp_path: Path, uri: str) -> None:
    content = await read(tmp_path, uri)
    assert content.mime_type == "text/markdown"
    assert len(content.text) > 500
    assert "---\n" not in content.text[:10]


async def test_the_template_has_the_seven_sections(tmp_path: Path) -> None:
    text = (await read(tmp_path, "blueprint://template")).text
    assert re.findall(r"^## \[(\w+)\]$", text, re.MULTILINE) == [
        *("exp_purpose", "exp_codebase_dir", "exp_venv_exe", "exp_yaml_path"),
        *("exp_launch_command", "exp_result_dir", "exp_max_time"),
    ]


async def test_a_run_is_its_status(tmp_path: Path) -> None:
    make_run(tmp_path, "cfm-7kqz", 0)
    content = await read(tmp_path, "run://cfm-7kqz")
    status = json.loads(content.text)
    assert content.mime_type == "application/json"
    assert (status["run_id"], status["state"], status["exit_code"]) == ("cfm-7kqz", "failed", 3)
    assert status["events"][-1]["kind"] == "ended"


async def test_a_log_is_its_newest_part(tmp_path: Path) -> None:
    make_run(tmp_path, "cfm-7kqz", 0, "".join(f"step {n} loss 0.{n:06}\n" for n in range(100_000)))
    text = (await read(tmp_path, "run://cfm-7kqz/log")).text
    assert text.splitlines()[-2] == "step 99999 loss 0.099999"
    assert "99,801" in text.partition("\n")[0]
    assert len(text.encode()) <= 8192


async def test_the_log_of_a_run_without_output_says_so(tmp_path: Path) -> None:
    make_run(tmp_path, "cfm-7kqz", 0)
    (tmp_path / "runs/cfm-7kqz/attempts/1/output.log").unlink()
    assert (await read(tmp_path, "run://cfm-7kqz/log")).text == "[no output of run cfm-7kqz.]"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("guide://monitorin", "Guide not found: 'monitorin'. Available: monitoring."),
        ("guide://blueprint_guide", f"Guide not found: 'blueprint_guide'. Available: {', '.join(GUIDES)}."),
        ("agent://nobody", f"Agent not found: 'nobody'. Available: {', '.join(AGENTS)}."),
        ("run://cfm-7kqx", "Run not found: 'cfm-7kqx'. Did you mean cfm-7kqz?"),
        ("run://cfm-7kqx/log", "Run not found: 'cfm-7kqx'. Did you mean cfm-7kqz?"),
        (
            "sweep://lr",
            "Sweep not found: no sweep and no tag is named 'lr'. guide://sweep explains how to run a sweep.",
        ),
    ],
)
async def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path, uri: str, message: str) -> None:
    make_run(tmp_path, "cfm-7kqz", 0)
    assert await refusal(tmp_path, uri) == message


async def test_a_sweep_is_the_runs_with_its_tag_by_state(tmp_path: Path) -> None:
    make_run(tmp_path, "cfm-aaaa", 0, tags=["lr", "lr-1e-4"])
    make_run(tmp_path, "cfm-bbbb", 1, tags=["lr", "lr-3e-4"])
    make_run(tmp_path, "ppo-cccc", 2, tags=["other"])
    sweep = json.loads((await read(tmp_path, "sweep://lr")).text)
    assert (sweep["sweep"], sweep["total"], sweep["states"]) == ("lr", 2, {"failed": 2})
    assert [run["run_id"] for run in sweep["runs"]] == ["cfm-bbbb", "cfm-aaaa"]
    assert await complete(tmp_path, ResourceTemplateReference(uri="sweep://{name}"), "name", "lr") == [
        *("lr", "lr-3e-4", "lr-1e-4")
    ]
    assert await refusal(tmp_path, "sweep://lr-1e4") == (
        "Sweep not found: no sweep and no tag is named 'lr-1e4'. Did you mean lr-1e-4, lr-3e-4?"
    )


async def test_a_sweep_is_its_log_by_id_or_name(tmp_path: Path) -> None:
    make_run(tmp_path, "cfm-aaaa", 0, tags=["night", "nightly"])
    cells = [Cell("lr1", "1", {"lr": 1}), Cell("lr2", "1", {"lr": 2})]
    write_sweep(tmp_path, cells, [], created_at="2026-11-20T10:00:00Z", sweep_id="night-old2")
    write_sweep(tmp_path, cells, cell_events("lr2", 5.0), metric="reward")
    for name in ("night", "night-ab3d"):
        content = await read(tmp_path, f"sweep://{name}")
        assert content.mime_type == "text/markdown"
        assert content.text.startswith("# Sweep night-ab3d\n")
        assert "| 2 | 1 | lr2 | 2 | finished | 3000 | 5 |" in content.text
    assert (await read(tmp_path, "sweep://nightly")).mime_type == "application/json"
    assert await complete(tmp_path, ResourceTemplateReference(uri="sweep://{name}"), "name", "nig") == [
        *("night-ab3d", "night-old2", "night", "nightly")
    ]


@pytest.mark.parametrize(
    "uri",
    [
        *(
            "run://..",
            "run://../log",
            "run://%2e%2e",
            "run://..%2f..%2fetc",
            "run://%2Fetc%2Fpasswd",
            "run://.",
            "run://%00",
        ),
        *(
            "guide://../agents/eval-monitor",
            "guide://%2e%2e%2fagents%2feval-monitor",
            "agent://..%2fREADME",
            "agent:///etc/passwd",
        ),
        *("run://a/b/c", "run:///log", "guide://", "file:///etc/passwd", f"run://{'a' * 5000}", "sweep://../x"),
    ],
)
async def test_a_path_in_a_uri_reads_nothing(tmp_path: Path, uri: str) -> None:
    make_run(tmp_path, "cfm-7kqz", 0)
    assert len(await refusal(tmp_path, uri)) < 5100


async def test_blueprints_of_the_project_and_of_former_runs_have_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    (project / "blueprints").mkdir(parents=True)
    (project / "blueprints" / "cfm.md").write_text("# [exp_purpose]\nTrain CFM with EMA. wandb_key=" + "0a1b2c3d" * 5)
    (project / "blueprints" / "template.md").write_text("not runward's")
    (tmp_path / "ppo.md").write_text("# [exp_purpose]\nPPO")
    (tmp_path / "cfm.md").write_text("another of this name")
    for minute, name in enumerate(("ppo", "cfm", "gone")):
        make_run(home, f"{name}-aaaa", minute)
        spec = json.loads((home / "runs" / f"{name}-aaaa" / "spec.json").read_text())
        (home / "runs" / f"{name}-aaaa" / "spec.json").write_text(
            json.dumps(spec | {"blueprint": str(tmp_path / f"{name}.md")})
        )
    monkeypatch.chdir(project)
    cfm = await read(home, "blueprint://cfm")
    assert cfm.mime_type == "text/markdown"
    assert f"launch_run(blueprint='{project}/blueprints/cfm.md')" in cfm.text
    assert "Train CFM with EMA." in cfm.text
    assert "0a1b2c3d" not in cfm.text
    assert "PPO" in (await read(home, "blueprint://ppo")).text
    assert "runward's" not in (await read(home, "blueprint://template")).text
    assert "There are: cfm, ppo." in await refusal(home, "blueprint://zzzz")
    reference = ResourceTemplateReference(uri="blueprint://{name}")
    assert await complete(home, reference, "name", "") == ["cfm", "ppo"]
    async with client(home) as c:
        listed = {resource.uri: resource.description for resource in (await c.list_resources()).resources}
    assert f"launch_run(blueprint='{project}/blueprints/cfm.md')" in str(listed["blueprint://cfm"])
    assert "blueprint://ppo" not in listed  # of a former run, elsewhere


async def test_a_link_to_a_directory_without_a_spec_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "etc").symlink_to("/etc")
    assert "Run not found" in await refusal(tmp_path, "run://etc")


# --- completion


@pytest.mark.parametrize("uri", ["run://{run_id}", "run://{run_id}/log"])
async def test_run_ids_are_completed_newest_first(tmp_path: Path, uri: str) -> None:
    for minute, run_id in ((1, "cfm-aaaa"), (3, "ppo-bbbb"), (2, "cfm-cccc")):
        make_run(tmp_path, run_id, minute)
    reference = ResourceTemplateReference(uri=uri)
    assert await complete(tmp_path, reference, "run_id", "") == ["ppo-bbbb", "cfm-cccc", "cfm-aaaa"]
    assert await complete(tmp_path, reference, "run_id", "cfm") == ["cfm-cccc", "cfm-aaaa"]
    assert await complete(tmp_path, reference, "run_id", "zzz") == []


async def test_an_argument_that_is_a_run_is_completed_in_every_prompt(tmp_path: Path) -> None:
    make_run(tmp_path, "cfm-7kqz", 0)
    for name in ("monitor_run", "diagnose_run"):
        assert await complete(tmp_path, PromptReference(name=name), "run_id", "7k") == ["cfm-7kqz"]
    assert await complete(tmp_path, PromptReference(name="execute_blueprint"), "path", "/") == []


async def test_names_of_guides_and_agents_are_completed(tmp_path: Path) -> None:
    assert await complete(tmp_path, ResourceTemplateReference(uri="guide://{name}"), "name", "") == GUIDES
    assert await complete(tmp_path, ResourceTemplateReference(uri="agent://{name}"), "name", "eval") == ["eval-monitor"]
    assert await complete(tmp_path, ResourceTemplateReference(uri="nowhere://{x}"), "x", "") == []


async def test_a_completion_has_at_most_a_hundred_values(tmp_path: Path) -> None:
    for n in range(103):
        make_run(tmp_path, f"cfm-{n:04}", n % 60)
    async with client(tmp_path) as c:
        completion = (await c.complete(PromptReference(name="monitor_run"), {"name": "run_id", "value": ""})).completion
    assert (len(completion.values), completion.total, completion.has_more) == (100, 103, True)


async def test_without_the_files_the_rest_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "find_folder", lambda shelf: tmp_path / "nowhere" / shelf)
    documents.read_documents.cache_clear()
    try:
        make_run(tmp_path, "cfm-7kqz", 0)
        assert json.loads((await read(tmp_path, "run://cfm-7kqz")).text)["state"] == "failed"
        assert await refusal(tmp_path, "guide://monitoring") == "Guide not found: 'monitoring'. Available: none."
    finally:
        documents.read_documents.cache_clear()
