"""The files around the package: locked sources, hooks, workflows and templates say what is there."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = tomllib.loads((ROOT / "uv.lock").read_text())
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands(workflow: dict[str, Any]) -> list[str]:
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


def test_the_lock_names_the_public_registry_alone() -> None:
    sources = {tuple(package["source"].items()) for package in LOCK["package"] if package["name"] != "runward"}
    assert sources == {(("registry", "https://pypi.org/simple"),)}
    text = (ROOT / "uv.lock").read_text()
    assert set(re.findall(r'"(\w+://[^/"]+)', text)) == {"https://pypi.org", "https://files.pythonhosted.org"}


def test_the_lock_has_every_requirement_of_the_project() -> None:
    wanted = [
        *PROJECT["dependencies"],
        *(each for group in PROJECT["optional-dependencies"].values() for each in group),
    ]
    names = {re.split(r"[^\w.-]", each)[0].lower().replace("_", "-") for each in wanted}
    own = next(package for package in LOCK["package"] if package["name"] == "runward")
    locked = {each["name"] for group in (own["dependencies"], *own["optional-dependencies"].values()) for each in group}
    assert locked == names


def test_every_python_that_the_classifiers_name_is_checked() -> None:
    named = {word.rpartition(" ")[2] for word in PROJECT["classifiers"] if "Python :: 3." in word}
    assert set(WORKFLOWS["check"]["jobs"]["check"]["strategy"]["matrix"]["python"]) == named


def test_workflows_call_targets_and_programs_that_exist() -> None:
    called = [command for workflow in WORKFLOWS.values() for command in commands(workflow)]
    assert {name for command in called for name in re.findall(r"\bmake ([a-z-]+)", command)} <= TARGETS
    assert all((ROOT / path).is_file() for command in called for path in re.findall(r"python (\S+\.py)", command))


def test_no_workflow_may_write_but_for_the_release_that_it_makes() -> None:
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in WORKFLOWS.values())
    more = {
        name: job["permissions"]
        for flow in WORKFLOWS.values()
        for name, job in flow["jobs"].items()
        if "permissions" in job
    }
    assert more == {"publish": {"id-token": "write"}, "notes": {"contents": "write"}}


def test_hooks_run_what_the_setup_installs() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local", "nothing is fetched from another host"
    modules = {re.findall(r"^\.venv/bin/python -m (\w+)", hook["entry"])[0] for hook in repository["hooks"]}
    assert modules == {"ruff", "mypy", "pytest"}


def test_issue_forms_ask_for_something_each() -> None:
    forms = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    for form in map(yaml.safe_load, (path.read_text() for path in forms)):
        assert form["name"]
        assert any(field.get("validations", {}).get("required") for field in form["body"])
    assert {path.stem for path in forms} == {"bug", "diagnosis", "capability"}
