"""Next steps after causes outside the program: links and routes between nodes, faulty GPUs, tasks lost elsewhere."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

_NO_ROUTE = (
    r"(?:failed to connect to|[Cc]onnect(?:ion)? to|connect to host) \[?([\w.:-]+?)\]?(?::| port |<)(\d{2,5})\b.{0,60}"
)
_NOT_FOUND = (
    "{0} was not found: `command -v {0}` in that environment checks it; install it, activate its environment or give "
    "its whole path."
)
# First match wins: special before general.
# fmt: off
ROWS = (
    row("config_error", r"^(\S{1,60}): (?:ba|z|da)?sh: .{0,40}?([\w./-]{1,80}): command not found", "", "stop",
        "{0} finds no {1}: activate the environment there too (its shell's start-up file, or a whole path), then "
        "launch_run again."),
    # --- programs that a shell does not find or may not run
    row("config_error", r"\b(?:command not found: |sh: \d+: |exec: )([\w.+/-]{1,60})(?:: not found)?$", "",
        "stop", _NOT_FOUND),
    row("config_error", r"([\w.+/-]{1,60})(?:: ?|\uff1a)未找到命令", "", "stop", _NOT_FOUND),
    row("config_error data_error", r"(?:bash|sh|zsh|python[\d.]*)\\r\b.{0,4}: No such file", "", "stop",
        "The script has Windows line ends: `sed -i 's/\\r$//'` on it removes them, then launch_run again."),
    row("config_error data_error",
        r"(?:failed to run command|\benv:) ['\u2018]?([\w.+/-]{1,60})['\u2019]?: No such file",
        "", "stop",
        _NOT_FOUND),
    row("config_error data_error", r"(?:line \d+|bash): (\S{1,80}): (?:cannot execute: required file not found"
        r"|\S{1,80}: bad interpreter)", "", "stop",
        "The first line (#!) of {0} names a program that does not exist here: correct it, or start it as `bash {0}` or "
        "`python {0}`."),
    row("data_error", r"line \d+: (\S{1,80}): No such file or directory$", "", "stop",
        "{0} does not exist on this host: correct that path (`ls -l {0}` checks it), then launch_run again."),
    row("data_error", r"line \d+: (\S{1,80}): Permission denied$", "", "stop",
        "{0} may not be run or opened: `ls -l {0}` shows why; chmod +x it, or start it by python or bash."),
    # --- routes between nodes
    row("network_error nccl_error", _NO_ROUTE + r"(?i:no route to host|network is unreachable)", "", "retry_later",
        "{2} has no route to {0}:{1}: open its firewall (`nc -vz {0} {1}` there) or leave that node out "
        "(--exclude={2}), "
        "and retry later.", log=r"(?m)^([a-z][\w.-]{1,40}): .*failed to connect to \S+ \(errno: \d+ - No route"),
    row("network_error nccl_error", _NO_ROUTE + r"(?i:no route to host|network is unreachable)", "", "retry_later",
        "No route to {0}:{1} from this node: open the firewall between them (`nc -vz {0} {1}`) or leave the node out, "
        "and retry later."),
    row("network_error nccl_error", _NO_ROUTE + r"(?i:connection refused)", r"c10d|TCPStore|rdzv|MASTER_|torch|master",
        "retry_later",
        "Nothing listens at {0}:{1}: rank 0 there did not start, or has another MASTER_PORT; see its own log, and "
        "retry "
        "later."),
    row("network_error nccl_error", r"(?i)no route to host|network is unreachable",
        r"c10d|TCPStore|rdzv|MASTER_|NCCL", "retry_later",
        "The nodes have no route to each other: open the firewall between them, or leave out the node that says so; "
        "retry later."),
    # --- InfiniBand
    row("nccl_error", r"NET/IB ?:.{0,30}completion (?:from|with) peer ([\w.:]+?)<.{0,400}\bhca (\w+)", "",
        "retry_changed",
        "InfiniBand port {1} lost peer {0}: resume without that node (`ibstat {1}` shows it); if it recurs, raise "
        "NCCL_IB_TIMEOUT to 22."),
    row("nccl_error", r"ibv_\w+.{0,80}Cannot allocate memory", "", "stop",
        "InfiniBand may lock too little memory: `ulimit -l unlimited` before the training (docker: --ulimit "
        "memlock=-1), on every node."),
    row("nccl_error", r"NET/IB ?:.{0,30}(?:completion|async)|ibv_\w+", "", "retry_changed",
        "InfiniBand failed on that node: resume without it (`ibstat` there shows the port); if it recurs, raise "
        "NCCL_IB_TIMEOUT to 22."),
    # --- GPUs that fail, or that others hold
    row("cuda_error", r"Xid \((?:PCI:)?([\w:.]+)\): (\d+)", "", "retry_other_gpu",
        "GPU {0} failed in hardware (Xid {1}): resume on another GPU or host, and report it (it needs a reset)."),
    row("", r"capacity is un?balanced.{0,120}?min_per_gpu_memory=(\d+\.?\d?).{0,60}?local_gpu_memory=(\d+\.?\d?)", "",
        "retry_other_gpu",
        "Another process holds a part of a GPU ({0} of {1} GB are free): end it (`nvidia-smi`), or take another GPU "
        "(CUDA_VISIBLE_DEVICES)."),
    row("", r"(?i)memory (?:capacity|usage) is (?:un|im)balanced|occupied by other processes", "", "retry_other_gpu",
        "Another process holds a part of a GPU: end it (`nvidia-smi` shows it), or take another GPU "
        "(CUDA_VISIBLE_DEVICES)."),
    row("", r"(?i)error in memory profiling|release\w* GPU memory while", "", "retry_other_gpu",
        "Another process freed GPU memory while vLLM measured it: wait for its end (`nvidia-smi`), or take another "
        "GPU."),
    row("cuda_error", r"(?i)(?:devices?\W{0,4}(?:is/are|are|is) |all CUDA-capable devices are )busy or unavailable", "",
        "retry_other_gpu",
        "Another process has this GPU for itself (`nvidia-smi` shows it and the compute mode): take another GPU "
        "(CUDA_VISIBLE_DEVICES)."),
    # --- tasks of JAX and TensorFlow
    row("nccl_error", r"(?m)(?:unhealthy|heartbeat|timed out task|disconnected|has failed|is dead)[\s\S]{0,200}?"
        r"/task:(\d+)|/task:(\d+)\]?[^\n]{0,60}?(?:heartbeat|unhealthy|disconnect|fail|dead)", "", "retry",
        "Task {0}{1} died first: read its own log and the scheduler's events (preemption, eviction); retry from the "
        "last "
        "checkpoint."),
    row("nccl_error", r"(?i)jax|coordination|xla", "", "retry",
        "Another task of the JAX job died or never came: read the other tasks' own logs; retry from the last "
        "checkpoint."),
)
# fmt: on
