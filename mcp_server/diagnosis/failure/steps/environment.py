"""Next steps after failures of packages, data, access, disks, networks and kills."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

_OFFLINE = r"(?i:offline mode is enabled|OfflineModeIsEnabled|outgoing traffic has been disabled|HF_HUB_OFFLINE)"
_HUB = r"(?i:hugging ?face|hf_hub|\bhf\.co|hf-mirror|on the Hub\b|transformers|(?<!tensorflow_)datasets[/\\.])"
_OWN_NAMES = (
    "utils|src|models|model|datasets?|common|lib|tools|configs?|core|modules|scripts|layers|networks|envs|trainers?"
)
_WRITES = (
    r"open\([^\n]{0,120}['\"][wax]b?\+?['\"]|\b(?:savefig|to_csv|torch\.save|np\.savez?|imwrite|FileHandler)\b"
    r"|in _open\b"
)
# First match wins: special before general.
# fmt: off
ROWS = (
    # --- packages
    row("import_error", rf"No module named '((?:{_OWN_NAMES})(?:\.[\w.]+)?)'", "", "stop",
        "{0} is a module of the project: start in the project's root (cwd=), or set PYTHONPATH to it, then launch_run "
        "again."),
    row("", r"Installed CUDA version ([\d.]+) does not match .{0,60}compiled with ([\d.]+\d)", "", "stop",
        "nvcc is of CUDA {0}, torch of {1}: set CUDA_HOME to a toolkit {1}, or install a torch built for CUDA {0}, "
        "then "
        "launch_run again."),
    row("import_error", r"operator torchvision::|torchvision.{0,80}(?:compiled|version|incompatible)", "", "stop",
        "torch and torchvision are not of one release: install the pair that belongs together, then launch_run again."),
    row("import_error", r"working triton installation", "", "stop",
        "torch.compile needs Triton: install the one for this PyTorch, or turn compilation off, then launch_run "
        "again."),
    row("import_error", r"requires? (?:the )?`?(\w[\w-]{1,40})`? (?:package )?to be installed", "", "stop",
        "Install {0} into this run's environment, then launch_run again."),
    row("import_error", r"No module named '?numpy\._core", "", "stop",
        "The file was written with NumPy 2, this environment has 1: install numpy>=2 here, or write the file again "
        "with "
        "this one."),
    row("import_error", r"No module named '?([\w.]{1,60})", "", "stop",
     "Install the package that provides {0} into this run's environment, then launch_run again."),
    row("import_error", r"cannot import name '([\w.]{1,40})' from '([\w.]{1,40})'", "", "stop",
     "{1} has no {0}: its version does not fit; align the packages, then launch_run again."),
    row("import_error", r"[Ff]lash_?[Aa]ttn|FlashAttention", "", "stop",
     "Install flash-attn for this PyTorch, or choose attn_implementation=sdpa."),
    row("import_error", r"version `?((?:CXXABI|GLIBCXX)_[\d.]+\d)", "", "stop",
        "libstdc++ lacks {0}: conda install -c conda-forge libstdcxx-ng, or put a newer one first in LD_LIBRARY_PATH, "
        "then launch_run again."),
    row("import_error", r"version `?(GLIBC|CXXABI|GLIBCXX)\w*", "", "stop",
     "The system's {0} is older than the package needs: use a build for this system or a container."),
    row("import_error", r"([\w.+-]{1,60}\.so[\w.]{0,20}): cannot open shared object", "", "stop",
     "{0} is not found: install it or set LD_LIBRARY_PATH, then launch_run again."),
    row("import_error", r"undefined symbol: \S", "", "stop",
     "A compiled package does not match the others, mostly PyTorch: reinstall it for the installed version."),
    row("import_error", r"CUDA_HOME|nvcc|Ninja is required|Error building extension", "", "stop",
     "An extension cannot be compiled: install ninja and the CUDA toolkit and set CUDA_HOME, then launch_run again."),
    # --- data
    row("data_error", r"[Pp]arquet|magic bytes|ArrowInvalid", "", "stop",
        "The Parquet file {0} is cut or damaged: delete it and fetch or write it again, then launch_run again.",
        log=r"(?i:failed to read (?:file )?|error (?:while )?reading |reading "
        r"|opening )['\"]?([^\s'\"]{2,300}\.parquet)"),
    row("data_error", r"[Pp]arquet|magic bytes|ArrowInvalid", "", "stop",
     "One Parquet file is cut, damaged or a Git LFS pointer: pyarrow.parquet.read_metadata over all finds it; fetch "
     "it again."),
    row("data_error", r"PytorchStreamReader|central directory|invalid load key|Ran out of input"
        r"|pickle data was truncated"
     r"|[Cc]hecksum|No data left in file|mmap length|mmap an empty|Failed to interpret file|HeaderTooLarge"
        r"|InvalidHeader"
        r"|MetadataIncomplete|deserializing header|unexpected EOF|[Uu]nexpected end of"
     r"|[Tt]runcated file|truncated file", "", "stop",
     "The file is cut or damaged: resume from the checkpoint before it, or fetch it again, then launch_run again."),
    row("data_error", r"File exists: '?([^']{1,80})", "", "stop",
     "{0} exists already: choose another output directory or allow overwriting."),
    row("data_error", r"Permission denied: '?([^']{1,80})", "", "stop",
     "No permission for {0}: choose another path or fix its rights."),
    row("", r"(?<![\w./-])([\w./-]{2,200})'? is not a local folder and is not a valid model identifier", "", "stop",
        "{0} is neither a directory here nor a model of the Hub: correct the path, or name HF_TOKEN in secrets if "
        "it is "
        "private."),
    row("data_error", r"NoSuch(?:Key|Bucket)|specified (?:key|bucket) does not exist", "", "stop",
        "The bucket has no such object: correct its key or the bucket's name, then launch_run again."),
    row("", r"omniverse://|(?i:nucleus)|omniverse-content", "", "stop",
        "Isaac's assets are not reachable: point the asset root (ISAAC_NUCLEUS_DIR) to a reachable server or a "
        "local copy."),
    row("data_error", r"(?:No such file or directory: |[Ee]rror opening file |file )['\"]((?![/~]"
        r"|\w+://)[^'\"\n]{1,300})['\"]", "", "stop",
        "{0} does not exist from this working directory: launch_run with cwd= where it is, or give the whole path.",
        unless=_WRITES),
    row("data_error", r"(?:[Pp]arent directory"
        r"|Cannot save file into a non-existent directory:?) '?([^'\n]{1,300}?)'?(?: does(?: not|n't) exist|$)",
        "", "stop", "The directory {0} does not exist: create it first (mkdir -p), then launch_run again."),
    row("data_error", r"No such file or directory: '?([^'\n]{1,300})", _WRITES, "stop",
        "The directory of {0} does not exist: create it first (mkdir -p), then launch_run again."),
    row("data_error", r"No such file or directory: '?([^'\n]{1,300})", r"\W\\x[89a-f]|[\udc80-\udcff]|Ã|ã\\xad", "stop",
        "{0} does not exist; its name has another encoding: set LC_ALL=C.UTF-8 in env, or rename it."),
    row("data_error", r"No such file or directory: '?([^'\n]{1,300})", "", "stop",
        "{0} does not exist on this host: correct the path or fetch the data first."),
    row("data_error", r"(?i:\b(?:file|directory|path|folder|dataset"
        r"|checkpoint)\b:? does not exist:? +)'?([^'\n]{2,300})",
        "", "stop", "{0} does not exist on this host: correct the path or fetch the data first."),
    row("data_error", r"['\"`(: ]((?:/|\.{1,2}/|[\w-]+/)[^\s'\"`]{1,300}?)['\"`)]? (?:(?:is|was) )?(?:does(?: not"
        r"|n't) exist|not found|missing|cannot be found)",
        "", "stop", "{0} does not exist on this host: correct the path or fetch the data first."),
    row("data_error", r"(?i:not found|missing|find|open|load|exist)\b.{0,80}?['\"`(: ]((?:\.{1,2}/"
        r"|[\w-]+/)[^\s'\"`]{2,300})", "",
        "stop", "{0} does not exist from this working directory: launch_run with cwd= where it is, or give the "
        "whole path."),
    row("data_error", r"(?:not found|missing|find|open|load|exist)\b.{0,80}?['\"`(: ](/[^\s'\"`]{2,300})", "", "stop",
        "{0} does not exist on this host: correct the path or fetch the data first."),
    # --- access
    row("", r"(?i)wandb.{0,200}entity (\S{1,60}) not found|entity (\S{1,60}) not found during upsert", "", "stop",
        "wandb knows no entity {0}{1}: correct entity= and project=, or set WANDB_MODE=offline in env."),
    row("", r"(?i)(?:wandb|upsertBucket).{0,200}(?:permission denied|returned error 403)"
        r"|returned error 403.{0,80}upsert", "",
        "stop", "This wandb key may not write there: name the WANDB_API_KEY of a member in secrets, or correct "
        "entity= and "
        "project=."),
    row("auth_error", r"(?i)wandb|api_key not configured", "", "stop",
     "Name WANDB_API_KEY in launch_run's secrets, or set WANDB_MODE=offline."),
    row("auth_error", r"[Gg]ated|restricted|403", r"not in the authorized list|awaiting a review", "stop",
        "This account has no access yet: ask for it on the model's page (a fine-grained token also needs gated repos), "
        "then launch_run again."),
    row("auth_error", r"[Gg]ated|restricted|huggingface|Hugging|HF_TOKEN", "", "stop",
     "Accept the model's licence with this account and name HF_TOKEN in launch_run's secrets."),
    row("auth_error", r"(?i)openai|OPENAI_API_KEY", "", "stop", "Name a valid OPENAI_API_KEY in launch_run's secrets."),
    row("auth_error other", r"(?i)googleapis|google\.api_core|gcsfs|\bgs://", "", "stop",
        "This Google account may not read the bucket: grant it access, or name other credentials in launch_run's "
        "secrets."),
    row("auth_error", r"(?i)AWS|S3|botocore|boto", "", "stop",
     "Name valid AWS keys in launch_run's secrets, or ask for access to the bucket."),
    row("auth_error", r"publickey|could not read (?:Username|from remote)|github|gitlab", "", "stop",
     "git or ssh has no valid key here: name a token in launch_run's secrets, or ask for access."),
    # --- disk
    row("disk_full", r"torch_\d+|/dev/shm|[Ss]hared memory", "", "stop",
     "Shared memory is full: fewer DataLoader workers or a larger /dev/shm, then launch_run again."),
    row("disk_full", r"'?((?:\.{1,2}(?=/))?/[^\s']{2,60})", "", "stop",
     "The disk of {0} is full: write elsewhere, or ask a person to free space, then launch_run again."),
    # --- crashes and kills
    row("segfault", r"[Bb]us error|SIGBUS", "", "retry_changed",
     "A bus error, mostly of a full /dev/shm: fewer DataLoader workers or a larger /dev/shm."),
    row("segfault", r"Illegal instruction|SIGILL", "", "stop",
     "The binary wants instructions that this CPU lacks: install a build for it, or use another host."),
    row("segfault", "", "", "retry",
        "Native code crashed below {0}: retry once; if it recurs, update or avoid that library.",
        log=r"\(most recent call first\):\s+File \"([^\"\n]{1,200})\""),
    row("killed", r"(?i)time limit|walltime|RUNLIMIT|timed.out|DeadlineExceeded", "", "stop",
     "The scheduler's time limit was reached: ask for more time and resume from the last checkpoint."),
    row("killed", r"KeyboardInterrupt|SIGINT|got signal: 2\b|\^C|nterrupted by|nterrupt\b|training early|code 130", "",
     "stop", "A person stopped the run: ask before starting it again."),
    row("killed", r"[Nn]ode failure on (\S+)", "", "retry",
     "The node {0} failed: resume from the last checkpoint, with --exclude={0}."),
    row("killed", r"(?i)preempt|requeue|node fail|evicted", "", "retry",
     "The scheduler took the machine away: start again from the last checkpoint."),
    row("killed", r"SIGHUP|signal:? 1\b|Hangup", "", "retry",
        "The terminal or the ssh session closed: start again from the last checkpoint, through launch_run, which "
        "survives "
        "it."),
    row("killed", "", "", "retry_changed", "Its own `timeout {0}` ended it: raise that, and resume from the last "
        "checkpoint.",
        log=r"(?m)^(?:\+{1,3} )?timeout (?:-\S+ |--\S+ )*(\d+\w?)"),
    row("killed", r"CANCELLED|TERM_OWNER|TERM_ADMIN", "", "stop", "The job was cancelled: ask before starting it "
        "again."),
    row("killed", r"(?i)^killed\b|SIGKILL|\b137\b|signal:? 9\b|killed$|= -9\b|exitcode: -9", "", "retry",
        "SIGKILL, most often the kernel's for memory (`dmesg -T` or sacct says): resume from the last checkpoint, "
        "with fewer "
        "workers if so."),
    # --- network
    row("network_error", _OFFLINE, "", "stop",
     "The run is offline and its cache lacks these files: fetch them into the cache first, or let it go online."),
    row("network_error", "", _OFFLINE, "stop",
     "The run is offline and its cache lacks these files: fetch them into the cache first, or let it go online."),
    row("network_error", r"insufficient_quota|exceeded your current quota", "", "stop",
     "The account's quota is used up: ask a person to raise it, or use another endpoint, then launch_run again."),
    row("network_error", r"\b429\b|Too Many Requests|[Rr]ate limit", r"(?i:huggingface\.co|HF_TOKEN|hf\.co)",
        "retry_later",
        "The Hub limits requests: name HF_TOKEN in launch_run's secrets and download the data once (hf download); "
        "retry "
        "later."),
    row("network_error", r"\b429\b|Too Many Requests|[Rr]ate limit|SlowDown|[Tt]hrottl|request rate", "", "retry_later",
     "The service limits requests: retry later, with fewer requests at once."),
    row("network_error", r"(?i)wandb|CommError|Run initialization has timed out", "", "retry_later",
     "Weights & Biases cannot be reached: retry later, or set WANDB_MODE=offline in env."),
    row("network_error", "", r"During handling of the above exception", "stop",
        "{0} is missing here, and the Hub was only the fallback: correct the path or root, then launch_run again.",
        log=
        r"(?s)FileNotFoundError: \[Errno 2\] No such file or directory: '([^'\n]{1,300})'(?=.{0,6000}During handling)"),
    row("network_error", _HUB, "", "retry_later",
     "The Hub cannot be reached: retry later, or fetch the files first and set HF_HUB_OFFLINE=1."),
    row("network_error", r"(?i)proxy|tunnel connection", "", "stop",
     "The proxy refuses: correct HTTPS_PROXY and NO_PROXY in env, then launch_run again."),
    row("network_error", r"CERTIFICATE_VERIFY_FAILED|SSLCertVerification", "", "stop",
     "The server's certificate is not trusted: set SSL_CERT_FILE or REQUESTS_CA_BUNDLE, then launch_run again."),
    row("network_error", r"Network is unreachable|\[Errno 101\]|No route to host|Name or service not known", "", "stop",
        "This host reaches no such network: fetch the files on one that does (a login node) and use the local path, "
        "or set "
        "HTTPS_PROXY.", unless=r"(?i:MASTER_ADDR|rendezvous|TCPStore|wandb)"),
    row("network_error", r"^ssh: |kex_exchange_identification|banner exchange", "", "retry_later",
     "ssh could not connect: check the host, its port and its sshd; retry later."),
    row("network_error", r"localhost|127\.0\.0\.1|0\.0\.0\.0", "", "stop",
     "No server answers on this host: start it or correct its address and port, then launch_run again."),
    row("network_error", "", r"site-packages[/\\](?:transformers|huggingface_hub|datasets)[/\\]", "retry_later",
     "The Hub cannot be reached: retry later, or fetch the files first and set HF_HUB_OFFLINE=1."),
    row("network_error", "", r"site-packages[/\\](?:openai|anthropic|httpx)[/\\]", "retry_later",
     "The model's API cannot be reached: check its base URL; retry later, with fewer requests at once."),
    # --- divergence
    row("divergence", r"\bstep=(\d+), skipped=\1\b", "", "stop",
        "fp16 overflows at every step, so that nothing was learned: use bf16, or a smaller fp16.initial_scale_power."),
    row("divergence", "", r"optimizer step since step \d+ was skipped", "stop",
        "Every step was skipped: fp16 overflows; use bf16, or a smaller initial loss scale."),
    row("divergence", r"(?i:loss scale already at min|minimum loss scale)", "", "stop",
        "fp16 overflows even at the smallest loss scale: use bf16, or a lower learning rate from the last good "
        "checkpoint."),
    row("divergence", "", r"since step [01]\b", "stop",
        "It is NaN from the first step, so the learning rate is not the cause: check labels and masks, dtype and "
        "attention, "
        "and loaded weights."),
    row("divergence", "", "", "stop",
        "Training diverged, and {0} is 0: warm up over some hundred steps, lower the learning rate, and resume from "
        "a checkpoint before it.", log=r"(?m)\b((?:lr_|num_)?warmup[_-](?:iters|steps|iterations)) ?[ .=:]{1,60}0\s*$",
        unless=r"warmup_ratio ?[ .=:]{1,60}0\.0*[1-9]"),
    row("stall", r"DataLoader timed out", "", "retry_changed",
     "The DataLoader's workers gave nothing: raise its timeout, or try num_workers=0 to see their error."),
)
# fmt: on
