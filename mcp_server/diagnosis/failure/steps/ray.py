"""Next steps after failures of Ray: its cluster, actors, Tune, Train, Serve and RLlib."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

# First match wins: special before general.
# fmt: off
ROWS = (
    # --- actors
    row("", r"The name (\S{1,60}) \(namespace=.{0,60}\) is already taken", r"(?i)rlinf", "stop",
        "Another run has this Ray namespace: set another one (RLINF_NAMESPACE), or leave it to the environment."),
    row("", r"The name (\S{1,60}) \(namespace=.{0,60}\) is already taken", "", "stop",
        "Another experiment may own that {0}: give this run a namespace of its own (RLINF_NAMESPACE, RAY_NAMESPACE or "
        "ray.init(namespace=))."),
    row("", r"Failed to look up actor with name '([^']{1,60})'", "", "stop",
        "No actor {0} lives in that namespace now: see `ray list actors`; start its creator first, with "
        "lifetime=\"detached\".", log=r"(?:ray\.init|get_actor)\([^\n]{0,160}namespace\s*=\s*\S"),
    row("", r"Failed to look up actor with name '([^']{1,60})'", "", "stop",
        "No actor {0} in this namespace: pass ray.init(namespace=) of its creator, or ray.get_actor(name, namespace=), "
        "and lifetime=\"detached\"."),
    row("", r"Could not serialize the (?:actor class|function|argument) ?(\S{0,60})", "", "stop",
        "Ray cannot send {0} ({1}): create that inside the actor or task {at}, not outside it, then launch_run again.",
        log=r"FAIL serialization: ([^\n]{3,80})"),
    row("", r"Could not serialize the (?:actor class|function|argument) ?(\S{0,60})", "", "stop",
        "Ray cannot send {0} to a process: create what cannot be pickled (lock, socket, file) inside it {at}, then "
        "launch_run again."),
    row("", r"TaskCancelledError|was cancelled by a user", "", "stop",
        "A person or the program cancelled the task: find who called ray.cancel or stopped the job before starting it "
        "again."),
    row("", r"PendingCallsLimitExceeded", "", "stop",
        "More calls wait than the actor takes: ray.wait for some {at}, or raise max_pending_calls in .options(), then "
        "launch_run again."),
    row("cuda_error python_error", r"No CUDA GPUs are available|CUDA-capable device|is_available\(\) is False",
        r"ray::(?!WorkerDict|LLMRayActor)|RayTaskError|RayTrainWorker|_raylet", "stop",
        "Ray gave this actor or task no GPU: num_gpus=1 in @ray.remote or .options() (RLlib: num_gpus_per_env_runner), "
        "then launch_run again."),
    row("ray_error", r"died because of an error raised in its creation task", "", "stop",
        "The actor's own __init__ failed: its error stands above or in Ray's worker logs; correct that, then "
        "launch_run again."),
    # --- memory and disk
    row("oom_host", r"memory usage threshold|memory pressure|node (?:was )?running low on memory|ray\.exceptions", "",
        "retry_changed",
        "Ray killed {0} ({1}) for host memory: fewer of them at once (num_cpus= or memory= in @ray.remote), or less in "
        "each.", log=r"\(task ID: [^\n]{0,80}?name=([\w.:<>-]{1,60}), pid=\d+, memory used=([\d.]+ ?[KMGT]?B)"),
    row("oom_host", r"memory usage threshold|memory pressure|node (?:was )?running low on memory|ray\.exceptions",
        r"(?i)rllib|rollout_?worker|env_?runner", "retry_changed",
        "Ray's memory monitor killed a worker: lower num_env_runners (num_workers) or the replay buffer, or use more "
        "memory."),
    row("oom_host", r"memory usage threshold|memory pressure|node (?:was )?running low on memory|ray\.exceptions", "",
        "retry_changed",
        "Ray's memory monitor killed a worker: fewer at once (num_cpus= or memory= per actor), or more memory."),
    row("", r"OutOfDiskError|object store is full and the local disk", "", "stop",
        "Ray's object store spilled until its disk was full: set --temp-dir or the spill directory on a larger "
        "disk, and enlarge /dev/shm."),
    row("ray_error", r"[Oo]bject store.{0,60}full|ObjectStoreFull", "", "retry_changed",
     "Ray's object store is full: raise object_store_memory (and /dev/shm), or hold fewer objects at once."),
    # --- resources
    row("", r"available node types|cannot be scheduled|infeasible|enough resources|0 GPUs", "", "stop",
        "Ray sees no GPU here, so nothing could start: get one first (sbatch --gres=gpu:N, launch_run's gpus=), or ask "
        "for 0 GPUs a trial.", log=r"\b\d+(?:\.\d+)?/0(?:\.0)? GPUs?\b|[Cc]luster has 0(?:\.0)? GPUs?"),
    row("", r"resource request(?: cannot be scheduled right now:)? (?:defaultdict\([^{]{1,40})?"
        r"\{([^}]{1,80})\}", "", "stop",
        "No node has {0} free: ask for less (num_workers, num_gpus, bundles), or add such nodes; `ray status` shows "
        "what "
        "is taken."),
    row("", r"You asked for (.{3,60}?) per trial, but the cluster only has (.{3,60}?) available", "", "stop",
        "A trial asks for {0}, the cluster has {1}: lower num_workers or resources_per_worker, then launch_run again."),
    row("", r"placement group bundle index (\d+) is invalid", "", "stop",
        "The engines want more GPUs than the placement group has: lower vllm_num_engines x tensor_parallel_size, or "
        "raise the actors' GPUs."),
    row("", r"Total available GPUs ([\d.]+) is less than total desired GPUs ([\d.]+\d|\d)", "", "stop",
        "Ray has {0} GPUs, the run wants {1}: lower trainer.n_gpus_per_node or nnodes, or add nodes, then launch_run "
        "again."),
    row("", r"Total (?:available|required) GPUs|infeasible re|resource request.{0,80}cannot be scheduled"
     r"|[Pp]lacement ?[Gg]roup.{0,80}(?:infeasible|timed? ?out)|enough (?:GPUs|resources)|Total available GPUs", "",
     "stop", "The cluster has fewer GPUs or CPUs than asked for: lower n_gpus_per_node or nnodes, or add nodes, then "
     "launch_run again."),
    # --- the cluster itself
    row("", r"Failed to connect to Ray at address: (\S{8,60})", "", "stop",
        "No Ray dashboard answers at {0}: start the head (`ray start --head`), or correct --address (port 8265), then "
        "launch_run again."),
    row("", r"(?i)ray client.{0,60}(?:lost|disconnect)|ray://\S+ was lost|"
     r"ConnectionAbortedError: Initialization failure from server", "", "retry_later",
        "The ray:// connection broke: retry later, and start the driver in the cluster (`ray job submit`), which "
        "survives that."),
    row("ray_error network_error", r"(?i)(?:connect to|connection to|reach) (?:\w+ )?redis|redis.{0,60}(?:refused"
        r"|failed)", "",
        "stop", "Ray's GCS cannot reach its Redis: start it, or correct RAY_REDIS_ADDRESS (unset it where none is "
        "wanted), "
        "then launch_run again."),
    row("ray_error", r"(?:connect to|find any running|waiting for) .{0,10}(?:Ray|GCS)\b|not (?:found|reachable)"
     r"|[Ss]ession.{0,60}mismatch"
     r"|GCS may have been killed|[Rr]ay [Cc]lient.{0,60}(?:connect|timeout)|No node with .{0,40}address|RAY_ADDRESS",
     "", "stop",
     "No Ray answers there: unset a stale RAY_ADDRESS, or start its head (`ray start --head`; see `ray status`), "
     "then launch_run again."),
    row("ray_error", r"^(?!.*placement).*(?:GetTimeoutError|Get timed out)", "", "retry_changed",
        "A result did not come in time: `ray status` shows whether its actor waits for resources; raise the timeout "
        "otherwise."),
    row("", r"exceeds the maximum size of|Package size \(", r"(?i)working_dir|runtime_env|py_modules|gcs", "stop",
        "Ray's working_dir is too large: put {0} and the like into runtime_env's excludes (or .rayignore), then "
        "launch_run again.", log=r"File (\S{1,300}) is very large"),
    row("", r"exceeds the maximum size of|Package size \(", r"(?i)working_dir|runtime_env|py_modules|gcs", "stop",
        "Ray's working_dir is too large ({0}): name what it needs not in runtime_env's excludes (or .rayignore), then "
        "launch_run again.", log=r"Package size \(([^)]{2,20})\)"),
    row("ray_error", r"(?i:runtime_?env)", "", "stop",
        "The runtime_env has no {0}: name a version that exists, or install it beforehand, then launch_run again.",
        log=r"No matching distribution found for (\S{1,60})"),
    row("ray_error", r"(?i:runtime_?env)", "", "stop",
     "Ray could not build the runtime_env: correct its packages or working_dir, then launch_run again."),
    row("ray_error", r"[Vv]ersion mismatch|different version", "", "stop",
        "The cluster runs Ray {0} with Python {1}, this process {2} with {3}: install the same here, then launch_run "
        "again.",
        log=r"(?s)cluster was started with:\s+Ray: (\S+)\s+Python: (\S+).{1,120}?started with:\s+Ray: (\S+)\s+"
        r"Python: (\S+)"),
    row("ray_error", r"[Vv]ersion mismatch|different version", "", "stop",
     "Ray or Python differs between the nodes: install the same versions on all, then launch_run again."),
    row("ray_error", r"(?i)register worker|raylet.{0,40}(?:exited immediately|failed to start)|start the dashboard", "",
        "retry_changed",
        "A process of Ray could not start: lower the number of workers (num_cpus) or raise ulimit -u and -n; "
        "raylet.err "
        "says why."),
    row("port_conflict", r"does not match persisted value", "", "retry_other_port",
     "Another Ray has this port or directory: launch_run again, with --port=$RAY_PORT --temp-dir=$RAY_TMPDIR."),
    row("port_conflict", r"trying to start at .{1,60} already running", "", "retry_other_port",
        "A Ray head runs there already: join it (address='auto'), end it (`ray stop`), or start with another --port."),
    row("config_error", r"\bnamespace\b.{0,120}already|already (?:taken|exists).{0,80}namespace", "", "stop",
        "Another run has this Ray namespace: set another one in ray.init(namespace=), or leave it out."),
    # --- Tune and RLlib
    row("", r"No default encoder config for obs space=(\w+)", "", "stop",
        "RLlib has no default network for a {0} space: add FlattenObservations to env_to_module_connector, or give "
        "an own "
        "RLModule, {at}."),
    row("", r"did not include the specified metrics?(?:\(s\))? [`'\[]*([\w/.-]{1,60})", "", "stop",
        "Results have no {0}: report it (tune.report), or name one they have in TuneConfig(metric=), such as {1}.",
        log=r"Result: \{'([\w/.-]{1,60})'"),
    row("", r"did not include the specified metrics?(?:\(s\))? [`'\[]*([\w/.-]{1,60})", "", "stop",
        "Results have no {0}: report it (tune.report), or name one that they have in TuneConfig(metric=)."),
    row("", r"env string you provided \('([^']{1,60})'\)|Unknown Env\w*:? '?([\w/-]{1,60})", "", "stop",
        "RLlib has no environment {0}{1}: tune.register_env('{0}{1}', creator) first, or name an installed one, then "
        "launch_run again."),
    row("", r"unexpected keyword argument '(num_rollout_workers|num_workers)'",
        r"(?i)rllib|AlgorithmConfig|env_runners",
        "stop", "This RLlib calls {0} num_env_runners: write that {at}, then launch_run again."),
    row("", r"unexpected keyword argument '(num_envs_per_worker)'", "", "stop",
        "This RLlib calls {0} num_envs_per_env_runner: write that {at}, then launch_run again."),
    row("", r"has no attribute '(rollouts|num_rollout_workers|workers)'", r"(?i)rllib|AlgorithmConfig|PPO\b|SAC\b",
        "stop", "This RLlib has no {0}: it is env_runners (env_runner_group) now; write that {at}, then launch_run "
        "again."),
)
# fmt: on
