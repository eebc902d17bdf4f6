"""Next steps after failures of inference servers, of training that generates with them, and of tools of agents."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

_SERVER = r"(?i:\bvllm\b|\bsglang\b|uvicorn|fastapi|gradio|api_server|http_server|launch_server)"
_LATE = r"(?i:Read ?Timeout|timed? ?out|Timeout \d+ ?ms exceeded|deadline exceeded|TimeoutError)"
# First match wins: special before general.
# fmt: off
ROWS = (
    # --- vLLM and SGLang
    row("", r"Cannot re-initialize CUDA in forked subprocess", r"\bvllm\b", "stop",
        "CUDA was used before a fork: set VLLM_WORKER_MULTIPROC_METHOD=spawn in env, then launch_run again."),
    row("", r"must provide a chat template", "", "stop",
        "The served model has no chat template: start the server with --chat-template FILE, or serve its instruct "
        "model, "
        "then launch_run again."),
    row("", r"peer access is not supported between", "", "stop",
        "These GPUs have no peer access: disable_custom_all_reduce=True in vLLM (SGLang: --disable-custom-all-reduce), "
        "NCCL_P2P_DISABLE=1 in env."),
    row("", r"([\w.-]{2,40}) is installed with version (\S+), which is less than the minimum\D{1,20}([\w.]+\w)", "",
        "stop", "{0} is {1}, but must be {2} or newer: upgrade it in this run's environment, then launch_run again."),
    row("", r"auto\W{0,3} tool choice requires", "", "stop",
        "Start the vLLM server with --enable-auto-tool-choice and --tool-call-parser of this model (hermes, "
        "qwen3_coder, "
        "llama3_json)."),
    row("", r"(?m)max_model_len \((\d+)\) is greater than the derived max_model_len \([^\n]{0,40}?=(\d+)", "", "stop",
        "The model allows {1} tokens: set max_model_len to that or less ({0} here); "
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 only with rope scaling."),
    row("", r"(?i)heads \(?(\d+)\)? .{0,20}divisible by .{0,20}(?:tensor|tp|parallel)\D{0,30}(\d+)", "", "stop",
        "{0} attention heads cannot be split over {1} GPUs: choose a tensor_parallel_size that divides {0}, then "
        "launch_run again."),
    row("", r"divisible by (?:the )?tensor[ _](?:model[ _])?parallel", "", "stop",
     "Choose a tensor parallel size that divides the model's attention heads, then launch_run again."),
    row("", r"^(?!.*[Pp]lease set).*[Mm]odel architectures? \[?'?(\w+)'?\]? (?:are|is) not supported"
        r"|\b(\w{1,80}) is not (?:in the model registry"
        r"|supported "
        r"by vLLM)", "", "stop",
        "The installed server does not know {0}{1}: upgrade vLLM or SGLang (and transformers), or use a model that it "
        "lists."),
    row("", r"[Bb]float16 is only supported on GPUs with compute capability", "", "stop",
        "This GPU has no bfloat16: pass --dtype=half (dtype=\"half\"), then launch_run again."),
    row("", r"LoRA rank (\d+) is greater than max_lora_rank (\d+)", "", "stop",
        "The adapter has rank {0}, the engine allows {1}: set max_lora_rank={0} (--max-lora-rank), then launch_run "
        "again."),
    row("", r"maximum context length is (\d+) tokens", r"(?i)requested (?:about )?(\d+)|input .{0,20}tokens|"
        r"max_tokens|completion", "stop",
        "Prompt and max_tokens exceed the server's {0} tokens: lower max_tokens or cut the messages {at}, or serve "
        "with "
        "a larger max_model_len."),
    row("", r"prompt \(length (\d+)\) is longer than the maximum model length of (\d+)", "", "stop",
        "A prompt has {0} tokens, the engine takes {1}: cut it {at}, or raise max_model_len (verl: max_prompt_length + "
        "max_response_length)."),
    row("", r"[Pp]rompt length \(?(\d+)\)?.{0,20}(?:is )?longer than (?:the )?(?:max\w* )?\D{0,40}(\d+)",
        r"verl|rl_dataset", "stop",
        "A prompt has {0} tokens: raise data.max_prompt_length ({1}), or set data.filter_overlong_prompts=True (or "
        "data.truncation)."),
    row("", r"[Pp]rompt length \(?(\d+)\)?.{0,20}(?:is )?longer than (?:the )?(?:max\w* )?\D{0,40}(\d+)", "", "stop",
        "A prompt has {0} tokens where {1} are allowed: drop or cut long prompts, or raise that limit, then launch_run "
        "again."),
    row("", r"[Tt]he model `?([^`'\"\n]{1,80})`? does not exist", "", "stop",
        "The server has no model {0}: ask by the name that GET /v1/models lists (--served-model-name), then launch_run "
        "again."),
    row("oom_gpu", "", r"wake_up|cumem_allocator|resume_memory_occupation", "retry_changed",
        "The engine found no room when it woke up: lower rollout.gpu_memory_utilization, or offload the actor "
        "(param_offload, optimizer_offload)."),
    row("oom_gpu", r"(?:Prefill|Decode) out of memory", "", "retry_changed",
        "SGLang's KV pool is too small: lower --max-running-requests or --chunked-prefill-size, or raise "
        "--mem-fraction-static."),
    row("oom_gpu", "", r"from_pretrained\([^\n]*\)\.(?:cuda|to)\(|in (?:load_model|load_weights"
        r"|_load_pretrained_model)\b",
        "retry_changed",
        "The weights alone do not fit: load fewer bits (dtype=bfloat16, quantized), or spread them (device_map, "
        "tensor parallelism), or change the GPU."),
    row("port_conflict", r"^(?!.*\b\d{2,5}\b).*$|\[Errno 98\][^:\d]*$|\[Errno 98\] [A-Z][^:\d]*$", _SERVER,
        "retry_other_port",
        "The server's port is taken: launch_run again with another --port, or stop the server that has it."),
    row("network_error", r"vLLM server can't be reached at (\S{1,60})", "", "stop",
        "No vLLM server answers at {0}: start it first (`trl vllm-serve`), or correct vllm_server_host and its port, "
        "then launch_run again."),
    # --- verl, OpenRLHF, TRL
    row("", r"NotImplementedError|[Rr]eward function is not implemented", r"default_compute_score|reward_score", "stop",
        "verl knows no reward for this data_source: set custom_reward_function.path and .name, or a data_source "
        "that it knows."),
    row("", r"[Pp]lease set (?:at least|only) one of '([\w.]{1,90})' or '([\w.]{1,90})'", "", "stop",
        "Set {1}, then launch_run again."),
    row("stall", r"[Ww]atchdog timeout \(\S*=(\d+)", r"(?i)sglang|watchdog_timeout|Decode batch", "stop",
        "SGLang's scheduler hung for {0} s: look with py-spy and NCCL_DEBUG=INFO which rank waits; for a slow step "
        "raise --watchdog-timeout."),
    row("", r"only support equal chunk.{0,40}DataProto (\d+) and chunk (\d+)", "", "stop",
        "{0} samples do not divide among {1} workers: choose batch size x rollout.n as a multiple of {1}, or another "
        "number of GPUs."),
    row("", r"real_train_batch_size \(?(\d+)\)? must be divisible by .{0,40}?\(?(\d+)", "", "stop",
        "data.train_batch_size x rollout.n is {0}, but must be a multiple of {1} (the GPUs): change either, then "
        "launch_run again."),
    row("", r"number of generations per prompt \((\d+)\).{0,120}valid values.{0,80}\[([\d, ]{1,60})\]", "", "stop",
        "Set num_generations to one of {1} ({0} here), or make per_device_train_batch_size x GPUs a multiple of it, "
        "then launch_run again."),
    row("", r"divisible by the number of generations.{0,20}\((\d+)\)|num_generations \((\d+)\)", "", "stop",
        "Make per_device_train_batch_size x GPUs a multiple of num_generations ({0}{1}), or change that one, then "
        "launch_run again."),
    row("", r"KeyError: '(ground_truth|reward_model|data_source|extra_info|prompt)'", r"verl|reward_manager|rl_dataset",
        "stop", "The Parquet data has no {0}: add that column (verl wants data_source, prompt, reward_model with "
        "ground_truth), then launch_run again."),
    row("data_error", r"No such file or directory: '([^'\n]{1,200}tool\w*[^'\n]{0,100}\.ya?ml)'", "", "stop",
        "There is no tool file {0}: correct actor_rollout_ref.rollout.multi_turn.tool_config_path, then launch_run "
        "again."),
    row("data_error", r"model_world_size_(\d+)_rank_(\d+)", r"verl|checkpoint", "stop",
        "The checkpoint is of {0} ranks and rank {1}'s part is not here: use as many GPUs, on nodes that share that "
        "directory."),
    row("", r"Target sizes: \[(\d+)\]\.\s+Tensor sizes: \[(\d+)\]", r"rewards_per_func|reward_func", "stop",
        "A reward function returned {1} values for {0} completions: return one for each (None where it does not "
        "apply), "
        "then launch_run again."),
    row("", r"unique IP address", r"VLLM_HOST_IP|ray", "stop",
        "Two nodes report the same IP address: set VLLM_HOST_IP to each node's own before ray start there, then "
        "launch_run again."),
    # --- Redis
    row("network_error", r"Error -?\d+ connecting to (\S{3,60}?)\. ", r"(?i)redis", "stop",
        "No Redis answers at {0}: start it (redis-server), or correct its host and port, then launch_run again."),
    row("network_error", r"(?i)redis\S*: .{0,80}refused", "", "stop",
        "No Redis answers: start it (redis-server), or correct its host and port, then launch_run again."),
    row("auth_error", r"(?i)authentication required|NOAUTH|WRONGPASS", r"(?i)redis", "stop",
        "Redis wants a password: name it in launch_run's secrets and pass it to the client {at}."),
    row("", r"MISCONF", r"(?i)redis", "stop",
        "Redis cannot save to its disk and refuses writes: free that disk, or set stop-writes-on-bgsave-error no, then "
        "launch_run again."),
    row("", r"(?i)OOM command not allowed when used memory", "", "stop",
        "Redis is full: raise its maxmemory, or delete or expire keys, then launch_run again."),
    # --- what agents that are trained depend on
    row("", r"Executable doesn't exist at|playwright install", "", "stop",
        "Playwright has no browser here: run `playwright install --with-deps chromium` in this environment, then "
        "launch_run again."),
    row("", r"JSONDecodeError: ([^\n:]{1,60}): line (\d+) column (\d+)",
        r"(?i)\bjson\.loads\((?!fp\.read|[^\n]*read\()[^\n]*\n(?![\s\S]*json\.loads?\([^\n]*(?:open|\.read))", "stop",
        "The text parsed {at} is not JSON ({0}): it is a model's or server's words, so catch this there, then "
        "launch_run "
        "again."),
    row("", r"database is locked", "", "stop",
        "Another process writes this SQLite file {at}: let one process write, pass a longer timeout=, or use WAL on "
        "a local "
        "disk."),
    row("", r"JSONDecodeError: ([^\n:]{1,60}): line (\d+) column (\d+)", r"\.json\(\)", "stop",
        "A server answered without JSON ({0}) {at}: check its status and address there before .json(), then launch_run "
        "again."),
    row("network_error python_error other timeout", _LATE, r"(?i)playwright|selenium|page\.goto|webdriver|browser",
        "retry_changed",
        "A page did not load in time {at}: check its server, raise the timeout, or run fewer browsers at once."),
    row("network_error python_error other timeout", _LATE,
        r"(?i)tools?[/\\._ ]|tool_call|call_tool|\bmcp\b|sandbox|run_code|code_exec|retriev|rewards?[/\\_]|judge",
        "retry_changed",
        "A tool or reward server did not answer in time: raise its timeout {at}, run fewer rollouts at once, or check "
        "the server."),
    row("other network_error python_error", r"(?i)(?:create|start|reset|launch)\w* (?:an? |the )?(?:env\w*|sandbox|"
        r"container)\b.{0,40}(?:instance|fail|after|tries)|fail\w* to (?:create|start|launch|reset) (?:an? "
        r"|the )?(?:env|sandbox)",
        "", "retry_later",
        "The environments' server gave none: check that server and its log {at}; retry later, with fewer rollouts at "
        "once."),
    row("python_error timeout other", r"^(?:asyncio\.(?:exceptions\.)?)?TimeoutError\W*$", "", "stop",
        "A call took longer than its timeout ({0}) {at}: raise that, or catch TimeoutError and end the episode.",
        log=r"(?:wait_for|timeout)\([^\n]*?(?:timeout\s*=\s*)?([\w.\[\]'\"]{1,60})\)"),
    row("network_error data_error", r"\b4(?:00|04|05|09|13|15|22) (?:Client )?(?:Error|Bad Request|Not Found"
        r"|Unprocessable)|"
        r"Error code: 4(?:00|04|05|09|13|22)\b|\bHTTP(?: Error)? 4(?:00|04|05|13|22)\b.{0,80}\d+\.\d+\.\d+\.\d+",
        r"(?:localhost|"
        r"\d+\.\d+\.\d+\.\d+):\d+", "stop",
        "The server refuses the request as wrong {at}: its own log says why; correct the call or its address, then "
        "launch_run again."),
    row("network_error", r"(?i)read ?timeout|timed out", r"(?i)site-packages[/\\](?:openai|anthropic)", "retry_later",
        "The model's API did not answer in time: retry later, with a longer timeout or fewer requests at once."),
    row("network_error", r"^(?:httpx|httpcore|requests|aiohttp|urllib3)\S*\.(?:Read"
        r"|Connect)?\w*Timeout\w*:? ?.{0,200}$", "",
        "retry_later",
        "A server did not answer in time {at}: check it, and retry later with a longer timeout or fewer requests at "
        "once."),
    row("other", r"(?i)\btool.{0,100}tim(?:e[ -]?out|ed)", "", "retry_changed",
     "A tool did not answer in time: check its server, raise its timeout, or run fewer rollouts at once."),
    row("other", r"(?i)(?:allocat|acquir|reserv)\w* (?:\w+ )*env|env\w* ?(?:pool |worker )?allocation", "",
     "retry_changed",
     "No environment was free: check its server or containers, enlarge the pool, or run fewer rollouts at once."),
)
# fmt: on
