"""Proposes the next step after a failure: an action, and advice that names the setting to change. Pure.

The kind has a default. A line, with the text near it, often says more: which framework ran, and so which of its
settings helps. One row holds the action together with its sentence, so that they never contradict each other.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mcp_server.diagnosis.failure.kinds import KINDS, LOST_SESSION

ADVICE_CHARS = 160
_LINE_CHARS, _NEAR_CHARS = 1_000, 8_000


class NextStep(NamedTuple):
    """A proposal: one of ``kinds.ACTIONS`` and one sentence of at most ADVICE_CHARS characters."""

    retryable: bool
    action: str
    advice: str


class _Row(NamedTuple):
    kinds: frozenset[str]  # empty: any
    line: re.Pattern[str]
    near: re.Pattern[str] | None  # in the lines around
    action: str
    advice: str


STOPPED = "Somebody or a limit stopped the run: ask before starting it again."
_AGAIN = "then launch_run again."
_OFFLINE = r"(?i:offline mode is enabled|OfflineModeIsEnabled|outgoing traffic has been disabled|HF_HUB_OFFLINE)"
_HUB = r"(?i:hugging ?face|hf_hub|\bhf\.co|hf-mirror|on the Hub\b|transformers|datasets[/\\.])"
_VLLM, _SGLANG = r"\bvllm\b", r"\bsglang\b"

# Kinds, a pattern of the line, one of the lines near it, the action and the advice, whose placeholders are the line's
# groups. First match wins: special before general.
# fmt: off
_TABLE: tuple[tuple[str, str, str, str, str], ...] = (
    # --- limits of the host that say something else
    ("", r"Too many open files|\[Errno 24\]", "", "stop",
     f"Raise the limit (ulimit -n 65536); with DataLoader workers, set_sharing_strategy('file_system') too, {_AGAIN}"),
    ("", r"OpenBLAS.{0,80}(?:pthread_create|thread)|pthread_create failed|can't start new thread"
     r"|(?:fork|clone|thread)\b.{0,60}[Rr]esource temporarily unavailable|libgomp: Thread creation", "", "stop",
     f"No more threads for this user: set OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1, or raise ulimit -u, {_AGAIN}"),
    ("", r"unable to lock file|file locking", "", "stop",
     "This file system has no locks, or another process holds the file: set HDF5_USE_FILE_LOCKING=FALSE to read it."),
    ("", r"Stale file handle|\[Errno 116\]|Transport endpoint is not connected", "", "retry",
     "The network file system dropped the file: retry from the last checkpoint; if it recurs, use a local disk."),
    ("", r"Read-only file system", "", "stop", f"The file system is read-only: write to another directory, {_AGAIN}"),
    ("", r"Input/output error|\[Errno 5\]", "", "retry",
     "A disk failed to read or write: retry from the last checkpoint, and on another disk if it recurs."),
    ("", r"File name too long|Argument list too long", "", "stop",
     f"A name or the command line is too long: shorten the run's name or pass a config file, {_AGAIN}"),
    ("", r"Docker daemon|docker\.sock", "", "stop",
     "No Docker daemon answers: start it, or give the run access to docker.sock, then launch_run again."),
    ("", r"client_loop: send disconnect|packet_write_(?:wait|poll): Connection", "", "stop", LOST_SESSION),
    # --- rendering
    ("", r"EGL|OSMesa|osmesa|gladLoadGL|GLFWError|GLError|glGetError|X11: The DISPLAY|OpenGL (?:context|platform)"
     r"|could not open display|cannot connect to X server|Cannot connect to .{0,20}display|windowless context"
     r"|Failed to initialize OpenGL|couldn't get EGL|NoSuchDisplay|[Xx]vfb",
     "(?i:mujoco|robosuite|dm_control|libero|EGL|robomimic)", "stop",
     "No display to render on: set MUJOCO_GL=egl and PYOPENGL_PLATFORM=egl in env (osmesa without a GPU), then "
     "launch_run again."),
    ("",
     r"GLFWError|X11: The DISPLAY|could not open display|cannot connect to X server|Cannot connect to .{0,20}display"
     r"|NoSuchDisplay|windowless context|no display name|Display \S+ cannot be opened", "", "stop",
     f"No display to render on: run without one (headless or rendering off, or xvfb-run), {_AGAIN}"),
    ("", r"PxGpuDynamicsMemoryConfig::(\w{1,50}) to (\d{1,12})", "", "stop",
     "Raise PhysX's {0} to {1} in the simulation's physx settings (gpu_...), or lower num_envs, then launch_run "
     "again."),
    ("cuda_error other segfault", "",
     r"(?i:vkCreateInstance|vulkan.{0,60}(?:not supported|fail|error))|ERROR_INCOMPATIBLE_DRIVER", "stop",
     "Vulkan does not work here: install the GPU's graphics driver (in a container, NVIDIA_DRIVER_CAPABILITIES=all)."),
    # --- vLLM and SGLang
    ("", r"[Ff]ree memory on device.{0,160}less than desired|less than desired GPU memory utilization", "",
     "retry_changed",
     "Others hold part of this GPU: lower vLLM's gpu_memory_utilization below what is free, or choose a free GPU."),
    ("", r"No available memory for the cache blocks|larger than the (?:maximum number of tokens|available KV cache)"
     r"|KV cache is needed|decreas(?:e|ing) `?max_model_len", "", "retry_changed",
     "No room for vLLM's KV cache: lower max_model_len, or raise gpu_memory_utilization if the GPU is otherwise "
     "free."),
    ("", r"[Nn]ot enough memory\. Please try to (?:in|de)crease --?-?mem|mem[-_]fraction[-_]static", "",
     "retry_changed",
     "SGLang has no room for its KV cache: change --mem-fraction-static as the line says, or lower --context-length."),
    ("oom_gpu", "", _SGLANG, "retry_changed",
     "SGLang ran out of GPU memory: lower --mem-fraction-static, or --chunked-prefill-size and "
     "--max-running-requests."),
    ("oom_gpu", "", r"\bverl\b|actor_rollout_ref|ppo_(?:micro|mini)|WorkerDict", "retry_changed",
     "Lower ppo_micro_batch_size_per_gpu (or ppo_max_token_len_per_gpu), or rollout.gpu_memory_utilization."),
    ("oom_gpu", "", r"OpenRLHF|openrlhf|LLMRayActor", "retry_changed",
     "Halve --micro_train_batch_size or --micro_rollout_batch_size, or lower --vllm_gpu_memory_utilization."),
    ("oom_gpu", "", _VLLM, "retry_changed",
     "vLLM ran out of GPU memory: lower gpu_memory_utilization, or max_model_len and max_num_seqs."),
    # --- GPU memory of others
    ("oom_gpu", r"\bTPU|\bhbm\b|\bHBM\b", "", "retry_changed",
     "TPU memory ran out: halve the per-device batch size, or shard or rematerialise more."),
    ("oom_gpu", r"PhysX|PxgCuda|Gym cuda|\[Error\] .*malloc", "", "retry_changed",
     "The simulation does not fit into GPU memory: halve num_envs."),
    ("oom_gpu", "", r"(?i:isaac ?(?:lab|gym|sim)|legged_gym|rsl_rl|rl_games|omni\.)", "retry_changed",
     "GPU memory ran out: halve num_envs; if it recurs, also the mini-batch of the algorithm."),
    ("oom_gpu", "", r"mujoco_playground|\bbrax\b|\bmjx\b", "retry_changed",
     "GPU memory ran out: halve num_envs or batch_size."),
    ("oom_gpu", "", r"[Gg]rpo|GRPO", "retry_changed",
     "Lower per_device_train_batch_size or num_generations and max_completion_length; vllm_gpu_memory_utilization "
     "with vLLM."),
    ("oom_gpu", "", r"megatron", "retry_changed",
     "Lower --micro-batch-size, or turn on --recompute-activations or more tensor parallelism."),
    ("oom_gpu", "", r"llamafactory|transformers[/\\]trainer|trl[/\\]|axolotl|[Ss]entence.?[Tt]ransformer",
     "retry_changed",
     "Halve per_device_train_batch_size and double gradient_accumulation_steps; gradient_checkpointing saves more."),
    ("oom_gpu", "", r"deepspeed", "retry_changed",
     "Halve train_micro_batch_size_per_gpu, or use a higher ZeRO stage or offload."),
    ("oom_gpu", "", r"torchtitan", "retry_changed",
     "Lower training.local_batch_size or seq_len, or set activation_checkpoint.mode=full."),
    ("oom_gpu", "", r"ultralytics", "retry_changed", "GPU memory ran out: lower batch= or imgsz=."),
    ("oom_gpu", "", r"lightning", "retry_changed",
     "Halve the data module's batch_size and double accumulate_grad_batches; precision=bf16-mixed saves more."),
    ("oom_gpu", "", r"diffusers", "retry_changed", "Lower --train_batch_size, or add --gradient_checkpointing."),
    ("oom_gpu", r"RESOURCE_EXHAUSTED|Jax|jax|XLA", "", "retry_changed",
     "GPU memory ran out: halve the batch size; where others use the GPU, XLA_PYTHON_CLIENT_PREALLOCATE=false."),
    ("oom_gpu", r"OOM when allocating|ResourceExhausted|BFCAllocator|_bfc\b", "", "retry_changed",
     "GPU memory ran out: halve batch_size; where others use the GPU, TF_FORCE_GPU_ALLOW_GROWTH=true in env."),
    # --- host memory
    ("oom_host", r"memory usage threshold|memory pressure|node (?:was )?running low on memory|ray\.exceptions", "",
     "retry_changed", "Ray's memory monitor killed a worker: fewer actors or environments per node, or more memory."),
    ("oom_host", r"DataLoader worker", "", "retry_changed",
     "A DataLoader worker was killed, most likely for host memory: lower num_workers or prefetch_factor."),
    ("oom_host", r"slurmstepd|oom[-_ ]kill event|srun: error", "", "retry_changed",
     "The job's memory limit was reached: ask for more (--mem), or use fewer workers or environments."),
    ("oom_host", r"OOMKilled", "", "retry_changed",
     "The container's memory limit was reached: raise it, or use fewer workers or environments."),
    ("oom_host", r"[Uu]nable to allocate|_ArrayMemoryError|MemoryError", "", "retry_changed",
     "An array does not fit into host memory: load less at once (memory-mapped or in pieces), or use more memory."),
    ("oom_host", r"pinned memory", "", "retry_changed",
     "Pinned host memory ran out: halve num_envs, or use more memory."),
    # --- CUDA
    ("", r"libdevice", "", "stop",
     "XLA does not find CUDA: install its toolkit and set XLA_FLAGS=--xla_gpu_cuda_data_dir=..., then launch_run "
     "again."),
    ("", r"TPU is already in use by process with pid (\d+)", "", "stop",
     "Process {0} holds the TPU: wait for its end or stop it, then launch_run again."),
    ("cuda_error", r"[Oo]ut ?[Oo]f ?[Rr]esources?: ?shared memory|shared memory, Required|OutOfResources", "", "stop",
     "A Triton kernel wants more shared memory than this GPU has: smaller block sizes or num_stages, or another "
     "attention backend."),
    ("cuda_error", r"no kernel image|below version|sm_\d+ is not compatible|only supports Ampere|compute capability"
     r"|PTX (?:JIT|was compiled)|unsupported toolchain|--gpu-architecture", "", "stop",
     "This build does not support this GPU: install one for its compute capability, or use a GPU that it supports."),
    ("cuda_error",
     r"(?i)driver.{0,80}(?:insufficient|too old|mismatch)|Driver/library version mismatch|forward compatibility", "",
     "stop",
     "The GPU driver does not fit this CUDA build: use a PyTorch for the driver's CUDA, or a host with a newer "
     "driver."),
    ("cuda_error",
     r"No CUDA GPUs are available|[Nn]o CUDA-capable device|Found no NVIDIA driver|Torch not compiled with CUDA"
     r"|CUDA device but torch\.cuda\.is_available|failed call to cuInit|NO_DEVICE|Unable to initialize backend"
     r"|couldn't communicate with the NVIDIA|invalid device ordinal", "", "stop",
     "The program sees no such GPU: launch_run with gpus=, check CUDA_VISIBLE_DEVICES and that the build has CUDA."),
    ("cuda_error", r"device-side assert", "", "stop",
     "An index is out of range in a kernel: check labels and vocabulary size; CUDA_LAUNCH_BLOCKING=1 shows the call."),
    ("cuda_error",
     r"(?i)\bECC\b|\bXid\b|fallen off the bus|devices? .{0,20}(?:busy|unavailable)|NVLink error|uncorrectable", "",
     "retry_other_gpu", "The GPU has a fault or is taken: retry on another GPU, and report it if it recurs."),
    ("cuda_error", r"cuDNN|CUDNN|DNN library", "", "retry",
     "cuDNN failed, often for lack of memory: retry once, then with a smaller batch, or align cuDNN with the "
     "framework."),
    # --- NCCL and rendezvous
    ("nccl_error", "", r"Duplicate GPU detected", "stop",
     "Two ranks use one GPU: start no more processes than GPUs, and set the device by LOCAL_RANK, then launch_run "
     "again."),
    ("nccl_error network_error",
     r"client socket has|[Rr]endezvous|Timed out after \d+ seconds? waiting for clients|TCPStore|MASTER_ADDR"
     r"|waiting for clients|connecting to .{0,60}(?:master|rdzv)|DistNetworkError|DistStoreError", "", "retry_later",
     "The ranks did not meet: check MASTER_ADDR, MASTER_PORT and that every node started; retry later when all do."),
    ("nccl_error", r"(?i:no socket interface|socketStartConnect|NCCL_SOCKET_IFNAME|connection refused|no route)", "",
     "stop",
     "NCCL cannot reach the other ranks: set NCCL_SOCKET_IFNAME to their common interface, then launch_run again."),
    ("nccl_error", "", r"no socket interface found|socketStartConnect.{0,80}failed|No route to host", "stop",
     "NCCL cannot reach the other ranks: set NCCL_SOCKET_IFNAME to their common interface, then launch_run again."),
    ("nccl_error", r"Expected to have finished reduction|collective .{0,40}mismatch|different (?:shapes|sizes)", "",
     "stop", "The ranks do different things: find unused parameters or uneven batches, then launch_run again."),
    # --- Ray
    ("ray_error", r"(?:connect to|find any running|waiting for) .{0,10}(?:Ray|GCS)\b|not (?:found|reachable)"
     r"|[Ss]ession.{0,60}mismatch"
     r"|GCS may have been killed|[Rr]ay [Cc]lient.{0,60}(?:connect|timeout)|No node with .{0,40}address|RAY_ADDRESS",
     "", "stop",
     "No Ray answers there: unset a stale RAY_ADDRESS, or start its head (`ray start --head`; see `ray status`), "
     "then launch_run again."),
    ("ray_error", r"[Oo]bject store.{0,60}full|ObjectStoreFull", "", "retry_changed",
     "Ray's object store is full: raise object_store_memory (and /dev/shm), or hold fewer objects at once."),
    ("ray_error", r"(?i:runtime_?env)", "", "stop",
     "Ray could not build the runtime_env: correct its packages or working_dir, then launch_run again."),
    ("ray_error", r"[Vv]ersion mismatch|different version", "", "stop",
     "Ray or Python differs between the nodes: install the same versions on all, then launch_run again."),
    ("", r"Total (?:available|required) GPUs|infeasible re|resource request.{0,80}cannot be scheduled"
     r"|[Pp]lacement ?[Gg]roup.{0,80}(?:infeasible|timed? ?out)|enough (?:GPUs|resources)|Total available GPUs", "",
     "stop", "The cluster has fewer GPUs or CPUs than asked for: lower n_gpus_per_node or nnodes, or add nodes, then "
     "launch_run again."),
    ("port_conflict", r"does not match persisted value", "", "retry_other_port",
     "Another Ray has this port or directory: launch_run again, with --port=$RAY_PORT --temp-dir=$RAY_TMPDIR."),
    ("port_conflict", r"(?i:\bport\b\W{0,4}(?:number )?)`?(\d{2,5})\b", "", "retry_other_port",
     "Port {0} is taken: launch_run again with another MASTER_PORT or --main_process_port."),
    ("port_conflict", r"(?:\]|localhost|\d{1,3}(?:\.\d{1,3}){3}|\*):(\d{2,5})\b(?![:.]\d)", "", "retry_other_port",
     "Port {0} is taken: launch_run again with another MASTER_PORT or --main_process_port."),
    ("config_error",
     r"\bnamespace\b.{0,120}already|already (?:taken|exists).{0,80}namespace|name .{1,80}is already taken"
     r"|actor with (?:the )?name", "", "stop",
     "Another run has this Ray namespace: set another one (RLINF_NAMESPACE), or leave it to the environment."),
    # --- packages
    ("import_error", r"No module named '?([\w.]{1,60})", "", "stop",
     "Install the package that provides {0} into this run's environment, then launch_run again."),
    ("import_error", r"cannot import name '([\w.]{1,40})' from '([\w.]{1,40})'", "", "stop",
     "{1} has no {0}: its version does not fit; align the packages, then launch_run again."),
    ("import_error", r"[Ff]lash_?[Aa]ttn|FlashAttention", "", "stop",
     "Install flash-attn for this PyTorch, or choose attn_implementation=sdpa."),
    ("import_error", r"version `?(GLIBC|CXXABI|GLIBCXX)\w*", "", "stop",
     "The system's {0} is older than the package needs: use a build for this system or a container."),
    ("import_error", r"([\w.+-]{1,60}\.so[\w.]{0,20}): cannot open shared object", "", "stop",
     "{0} is not found: install it or set LD_LIBRARY_PATH, then launch_run again."),
    ("", r"libtorchcodec|[Ff][Ff]mpeg (?:is not|not) ", "", "stop",
     "FFmpeg is missing or of another version: install one that torchcodec knows, or another video backend."),
    ("import_error", r"undefined symbol: \S", "", "stop",
     "A compiled package does not match the others, mostly PyTorch: reinstall it for the installed version."),
    ("import_error", r"numpy\.\w+ size changed|NumPy 1\.x|_ARRAY_API", "", "stop",
     "A compiled package needs another NumPy: align the versions (often numpy<2)."),
    ("import_error", r"CUDA_HOME|nvcc|Ninja is required|Error building extension", "", "stop",
     "An extension cannot be compiled: install ninja and the CUDA toolkit and set CUDA_HOME, then launch_run again."),
    # --- data
    ("data_error", r"[Pp]arquet|magic bytes|ArrowInvalid", "", "stop",
     "A Parquet file is cut or damaged: delete it and fetch or write it again, then launch_run again."),
    ("data_error", r"PytorchStreamReader|central directory|invalid load key|Ran out of input|pickle data was truncated"
     r"|HeaderTooLarge" r"|InvalidHeader|MetadataIncomplete|deserializing header|unexpected EOF|[Uu]nexpected end of"
     r"|[Tt]runcated file|truncated file", "", "stop",
     "The file is cut or damaged: resume from the checkpoint before it, or fetch it again, then launch_run again."),
    ("data_error", r"Weights only load failed", "", "stop",
     "torch.load refuses code in the file: pass weights_only=False if its source is trusted, then launch_run again."),
    ("data_error", r"File exists: '?([^']{1,80})", "", "stop",
     "{0} exists already: choose another output directory or allow overwriting."),
    ("data_error", r"Permission denied: '?([^']{1,80})", "", "stop",
     "No permission for {0}: choose another path or fix its rights."),
    ("data_error", r"No such file or directory: '?([^']{1,80})", "", "stop",
     "{0} does not exist on this host: correct the path or fetch the data first."),
    # --- configuration
    ("config_error", r"unrecognized arguments: (.{1,60})", "", "stop",
     "The program does not know {0}: see its --help, then launch_run again."),
    ("config_error", r"arguments are required: (.{1,60})", "", "stop",
     "Give the missing arguments {0}, then launch_run again."),
    ("config_error", r"argument ([\w/-]{1,40}).{0,10}: (?:invalid|expected|not allowed)", "", "stop",
     "Correct the value of {0}: the line and --help say what is allowed, then launch_run again."),
    ("config_error", r"[Nn]o such option:? '?(-[\w-]{1,40})", "", "stop",
     "The program does not know {0}: see its --help, then launch_run again."),
    ("config_error", r"[Kk]ey '([^']{1,40})' is not in struct", "", "stop",
     "The configuration has no key {0}: correct its name, or add it with +{0}=..."),
    ("config_error", r"Missing mandatory value: ?([\w.]{1,60})", "", "stop", "Give {0} a value first."),
    ("config_error", r"Could not override '([^']{1,60})'", "", "stop",
     "The configuration has no {0}: correct its name, or add it with +{0}=...; HYDRA_FULL_ERROR=1 shows more."),
    ("config_error",
     r"(?:mismatched|extraneous) input|no viable alternative|NoViableAlt|OverrideParseException|token recognition", "",
     "stop", "Hydra cannot read an override: quote its value, e.g. 'key=\"a=b\"'; HYDRA_FULL_ERROR=1 shows more."),
    ("config_error", r"Error in call to target|InstantiationException|Error locating target", "", "stop",
     "Hydra cannot build an object of the configuration: correct it; HYDRA_FULL_ERROR=1 in env shows why."),
    ("config_error", r"In '[^']{0,80}': Could not find '([^']{1,60})'", "", "stop",
     "There is no configuration {0}: correct the name to one that Hydra lists, then launch_run again."),
    ("config_error", r"bf16|bfloat16", "", "stop",
     "This GPU or build has no bf16: set fp16=true (or bf16=false), then launch_run again."),
    ("config_error", r"(?i)batch.{0,60}(?:divisible|multiple|check batch)|check batch related|divisible.{0,60}batch",
     "", "stop",
     "The batch sizes do not fit together: make the total a multiple of micro batch times GPUs, then launch_run "
     "again."),
    ("", r"(?i)world.?size.{0,40}(?:not )?divisible", "", "stop",
     "The parallel sizes do not fit: their product (tensor, pipeline, context) must divide the number of GPUs."),
    ("config_error", r"(?:Name|Namespace|Version)NotFound|[Ee]nvironment `?[\w/-]+`? (?:doesn't exist|not found)", "",
     "stop",
     "The task is not registered: correct its name, or import the package that registers it, then launch_run again."),
    ("config_error", r"KeyError: '([^']{1,40})'", "", "stop",
     "The configuration lacks {0}: add it, then launch_run again."),
    # --- errors of the program
    ("python_error data_error config_error",
     r"size mismatch for|loading state_dict|[Uu]nexpected key\(s\)|[Mm]issing key\(s\)", "", "stop",
     "The checkpoint is of another model or observation size: use the configuration it was trained with, or start "
     "without it."),
    ("python_error",
     r"Observation spaces do not match|Action spaces do not match|observation_space.{0,40}(?:mismatch|differ)", "",
     "stop",
     "The checkpoint is of another observation or action size: use the task it was trained on, or start without it."),
    ("python_error", r"invalid literal for int\(\) with base 10: '(?:GPU|MIG)-", "", "stop",
     "The program takes GPUs by index: launch_run with env CUDA_VISIBLE_DEVICES={{gpu_indices}}."),
    ("python_error", r"Expected to have finished reduction", "", "stop",
     "Some parameters got no gradient: find_unused_parameters=True in DistributedDataParallel, then launch_run "
     "again."),
    ("", r"divisible by (?:the )?tensor[ _](?:model[ _])?parallel", "", "stop",
     "Choose a tensor parallel size that divides the model's attention heads, then launch_run again."),
    ("", r"does not have a padding token", "", "stop",
     "The tokenizer has no padding token: set tokenizer.pad_token = tokenizer.eos_token, then launch_run again."),
    ("", r"chat_template is not set", "", "stop",
     "The tokenizer has no chat template: use the instruct model's, or give a chat_template, then launch_run again."),
    ("python_error", r"Cannot re-initialize CUDA in forked subprocess", "", "stop",
     "CUDA was used before a fork: set the start method 'spawn' (VLLM_WORKER_MULTIPROC_METHOD=spawn), then "
     "launch_run again."),
    ("python_error", r"bootstrapping phase|freeze_support", "", "stop",
     "A process starts while the module is imported: put the start under if __name__ == '__main__', then "
     "launch_run again."),
    ("python_error", r"Expected all tensors to be on the same device", "", "stop",
     "Tensors are on different devices: move the one at the last frame with .to(device), then launch_run again."),
    ("python_error", r"modified by an inplace operation", "", "stop",
     "An in-place operation spoils the gradient: set_detect_anomaly(True) shows which; then launch_run again."),
    ("python_error", r"longer than the (?:specified )?maximum|maximum context length|max_position_embeddings"
     r"|exceeds? .{0,40}(?:context|sequence) length", "", "stop",
     "An input is longer than the model allows: truncate it or lower max_length, then launch_run again."),
    ("", r"^(?:FAILED|ERROR) (\S{1,80}\.py\S{0,60})", "", "stop",
     "The test {0} fails: correct the code or the test, then launch_run again."),
    # --- access
    ("auth_error", r"(?i)wandb|api_key not configured", "", "stop",
     "Name WANDB_API_KEY in launch_run's secrets, or set WANDB_MODE=offline."),
    ("auth_error", r"[Gg]ated|restricted|huggingface|Hugging|HF_TOKEN", "", "stop",
     "Accept the model's licence with this account and name HF_TOKEN in launch_run's secrets."),
    ("auth_error", r"(?i)openai|OPENAI_API_KEY", "", "stop", "Name a valid OPENAI_API_KEY in launch_run's secrets."),
    ("auth_error", r"(?i)AWS|S3|botocore|boto", "", "stop",
     "Name valid AWS keys in launch_run's secrets, or ask for access to the bucket."),
    ("auth_error", r"publickey|could not read (?:Username|from remote)|github|gitlab", "", "stop",
     "git or ssh has no valid key here: name a token in launch_run's secrets, or ask for access."),
    # --- disk
    ("disk_full", r"torch_\d+|/dev/shm|[Ss]hared memory", "", "stop",
     "Shared memory is full: fewer DataLoader workers or a larger /dev/shm, then launch_run again."),
    ("disk_full", r"[Qq]uota|EDQUOT|\[Errno 122\]", "", "stop",
     "The quota is used up: write elsewhere, or ask a person to free space, then launch_run again."),
    ("disk_full", r"'?(/[^\s']{2,60})", "", "stop",
     "The disk of {0} is full: write elsewhere, or ask a person to free space, then launch_run again."),
    # --- crashes and kills
    ("segfault", r"[Bb]us error|SIGBUS", "", "retry_changed",
     "A bus error, mostly of a full /dev/shm: fewer DataLoader workers or a larger /dev/shm."),
    ("segfault", r"Illegal instruction|SIGILL", "", "stop",
     "The binary wants instructions that this CPU lacks: install a build for it, or use another host."),
    ("killed", r"(?i)time limit|walltime|RUNLIMIT|timed.out|DeadlineExceeded", "", "stop",
     "The scheduler's time limit was reached: ask for more time and resume from the last checkpoint."),
    ("killed", r"KeyboardInterrupt|SIGINT|got signal: 2\b|\^C|nterrupted by|nterrupt\b|training early|code 130", "",
     "stop", "A person stopped the run: ask before starting it again."),
    ("killed", r"(?i)preempt|requeue|node fail|evicted", "", "retry",
     "The scheduler took the machine away: start again from the last checkpoint."),
    ("killed", r"CANCELLED|TERM_OWNER|TERM_ADMIN", "", "stop", "The job was cancelled: ask before starting it again."),
    # --- network
    ("network_error", _OFFLINE, "", "stop",
     "The run is offline and its cache lacks these files: fetch them into the cache first, or let it go online."),
    ("network_error", "", _OFFLINE, "stop",
     "The run is offline and its cache lacks these files: fetch them into the cache first, or let it go online."),
    ("network_error", r"insufficient_quota|exceeded your current quota", "", "stop",
     "The account's quota is used up: ask a person to raise it, or use another endpoint, then launch_run again."),
    ("network_error", r"\b429\b|Too Many Requests|[Rr]ate limit|SlowDown|[Tt]hrottl|request rate", "", "retry_later",
     "The service limits requests: retry later, with fewer requests at once."),
    ("network_error", r"(?i)wandb|CommError|Run initialization has timed out", "", "retry_later",
     "Weights & Biases cannot be reached: retry later, or set WANDB_MODE=offline in env."),
    ("network_error", _HUB, "", "retry_later",
     "The Hub cannot be reached: retry later, or fetch the files first and set HF_HUB_OFFLINE=1."),
    ("network_error", r"(?i)proxy|tunnel connection", "", "stop",
     "The proxy refuses: correct HTTPS_PROXY and NO_PROXY in env, then launch_run again."),
    ("network_error", r"CERTIFICATE_VERIFY_FAILED|SSLCertVerification", "", "stop",
     "The server's certificate is not trusted: set SSL_CERT_FILE or REQUESTS_CA_BUNDLE, then launch_run again."),
    ("network_error", r"^ssh: |kex_exchange_identification|banner exchange", "", "retry_later",
     "ssh could not connect: check the host, its port and its sshd; retry later."),
    ("network_error", r"localhost|127\.0\.0\.1|0\.0\.0\.0", "", "stop",
     "No server answers on this host: start it or correct its address and port, then launch_run again."),
    ("network_error", "", r"site-packages[/\\](?:transformers|huggingface_hub|datasets)[/\\]", "retry_later",
     "The Hub cannot be reached: retry later, or fetch the files first and set HF_HUB_OFFLINE=1."),
    ("network_error", "", r"site-packages[/\\](?:openai|anthropic|httpx)[/\\]", "retry_later",
     "The model's API cannot be reached: check its base URL; retry later, with fewer requests at once."),
    # --- what agents that are trained depend on
    ("other", r"(?i)\btool.{0,100}tim(?:e[ -]?out|ed)", "", "retry_changed",
     "A tool did not answer in time: check its server, raise its timeout, or run fewer rollouts at once."),
    ("other", r"(?i)(?:allocat|acquir|reserv)\w* (?:\w+ )*env|env\w* ?(?:pool |worker )?allocation", "",
     "retry_changed",
     "No environment was free: check its server or containers, enlarge the pool, or run fewer rollouts at once."),
    ("stall", r"DataLoader timed out", "", "retry_changed",
     "The DataLoader's workers gave nothing: raise its timeout, or try num_workers=0 to see their error."),
)
# fmt: on
_ROWS = tuple(
    _Row(frozenset(names.split()), re.compile(line), re.compile(near) if near else None, action, advice)
    for names, line, near, action, advice in _TABLE
)
ALL_STEPS = tuple(NextStep(row.action != "stop", row.action, row.advice) for row in _ROWS)

# What another process holds of the GPU, in PyTorch's message, and what this one does.
_OTHERS_SHARE = re.compile(r"\bProcess (\d+) has ([\d.]+) GiB memory in use")
_OWN_SHARE = re.compile(r"this process has ([\d.]+) GiB")


def propose_next_step(kind: str, line: str, near: str = "", *, retryable: bool | None = None) -> NextStep:
    """Return the next step after a failure of ``kind``, proven by ``line``, with the text ``near`` it.

    ``retryable``: what else is known about a kill; a row that contradicts it is left out.
    """
    line, near = line[:_LINE_CHARS], f"{near[:_NEAR_CHARS]}\n{line[:_LINE_CHARS]}"
    if kind == "oom_gpu" and (other := _find_other_process(line)):
        return NextStep(True, "retry_other_gpu", f"Process {other} holds most of this GPU: launch_run on another GPU.")
    for row in _ROWS:
        match = row.line.search(line) if not row.kinds or kind in row.kinds else None
        if not match or (row.near and not row.near.search(near)):
            continue
        may_retry = row.action != "stop"
        if retryable is not None and may_retry != retryable:
            continue
        advice = row.advice.format(*(part.strip(" .,:;") for part in match.groups("")))
        if len(advice) <= ADVICE_CHARS:
            return NextStep(may_retry, row.action, advice)
    default = KINDS[kind]
    if retryable is False and default.retryable:
        return NextStep(False, "stop", STOPPED)
    return NextStep(default.retryable, default.action, default.advice)


def _find_other_process(line: str) -> str:
    """Return the process that holds more of the GPU than this one, or nothing."""
    own = _OWN_SHARE.search(line)
    others = [(float(match[2]), match[1]) for match in _OTHERS_SHARE.finditer(line)]
    share, process = max(others, default=(0.0, ""))
    return process if own and share > float(own[1]) else ""
