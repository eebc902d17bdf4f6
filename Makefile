PYTHON ?= .venv/bin/python
DEVICE_PYTHON ?= python3

.PHONY: setup check test bench agents plugin engines frameworks conformance clients tmux-versions device device-wheels demo screenshots docs lock dist release
setup:
	python3 -m venv .venv
	.venv/bin/pip install -e '.[dev]'

check:  ## 75 s on 2 cores: format, lint, types, and the tests that start nothing
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -q -n 2 --dist worksteal -m "not slow" --ignore=tests/live

test:  ## everything, with real tmux, processes and clients, also the long tests
	$(PYTHON) -m pytest -n 6 --dist worksteal

plugin:  ## plugin/, .claude-plugin/ and server.json, from agents, prompts, .mcp.json and the hook
	$(PYTHON) -m tests.maintenance.plugin

bench:  ## every figure in the README, beside its baseline
	$(PYTHON) -m tests.benchmarks

agents:  ## 40 tasks by tools and by a shell; RUNWARD_AGENTS_URL names a real model's interface, else scripts answer
	$(PYTHON) -m tests.benchmarks agents

engines:  ## a real Slurm on loopback, where it is installed; only root brings it up
	RUNWARD_ENGINES=1 $(PYTHON) -m pytest -q -s tests/engines

frameworks:  ## real trainings; RUNWARD_FRAMEWORKS_PYTHON names a Python with torch and the rest
	$(PYTHON) -m tests.benchmarks frameworks

conformance:  ## the official MCP suite over HTTP; needs Node 22 or newer and npm
	$(PYTHON) -m tests.conformance

clients:  ## Claude Code, Codex, OpenCode with a scripted model; RUNWARD_CLAUDE … name them where they are not in PATH
	$(PYTHON) -m tests.clients

tmux-versions:  ## the tests about tmux on each version; TMUX_SOURCE is a clone of its repository
	sh tests/benchmarks/tmux_versions.sh "$(TMUX_SOURCE)" "$(PYTHON)"

device:  ## a real GPU beside NVML, nvidia-smi and PyTorch; DEVICE_PYTHON has them; DEVICE="--fake" tries the script
	$(DEVICE_PYTHON) -m tests.device $(DEVICE)

device-wheels:  ## into .device/: the packages that such a machine lacks
	$(PYTHON) -m tests.device.wheels

demo:
	$(PYTHON) -m mcp_server demo

screenshots:  ## the pictures of the page in README; needs Chromium
	$(PYTHON) -m tests.support.screenshots

docs:  ## the guides and a page a tool, in site/; needs the extra `docs`
	$(PYTHON) -m mkdocs build --strict

lock:  ## uv.lock anew, with the public registry alone, whatever this machine is configured to use
	uv lock --no-config --default-index https://pypi.org/simple

dist:  ## wheel, sdist and zipapp in dist/, installed in fresh environments and tried
	$(PYTHON) tests/maintenance/release.py dist

release: check dist  ## tag the version that `tests/maintenance/release.py prepare` wrote
	$(PYTHON) tests/maintenance/release.py tag
