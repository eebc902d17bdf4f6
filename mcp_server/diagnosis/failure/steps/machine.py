"""Next steps after failures of limits of the host, rendering, GPUs, ranks and ports."""

from __future__ import annotations

from mcp_server.diagnosis.failure.kinds import LOST_SESSION
from mcp_server.diagnosis.failure.steps.row import row

_NO_RENDERING = (
    r"EGL|OSMesa|osmesa|gladLoadGL|GLFWError|GLError|glGetError|X11: The DISPLAY|OpenGL (?:context|platform)"
    r"|could not open display|cannot connect to X server|Cannot connect to .{0,20}display|windowless context"
    r"|Failed to initialize OpenGL|couldn't get EGL|NoSuchDisplay|[Xx]vfb"
)
_SIMULATOR = "(?i:mujoco|robosuite|dm_control|libero|EGL|robomimic)"
_PORT = (
    r"(?i:\bport\b\W{0,4}(?:number )?)`?(\d{2,5})\b|(?:\]|localhost|\d{1,3}(?:\.\d{1,3}){3}|\*):(\d{2,5})\b(?![:.]\d)"
)
_WORKS_ON = (
    r"(?i:tokeniz|preprocess|Map \(?|Filter|Generating \w+ split|caching|packing)[^\n]{0,80}?\d{1,2}%\|"
    r"|(?s:(?:Watchdog|timing out|timed out).*?\n[^\n]{0,120}\b\d{1,2}%\|[^\n]{0,60}\d/\d)"
)
# First match wins: special before general.
# fmt: off
ROWS = (
    # --- limits of the host that say something else
    row("", r"Too many open files|\[Errno 24\]|received \d+ items of ancdata"
        r"|unable to open shared memory object .{0,120}\(24\)", "", "stop",
     "Raise the limit (ulimit -n 65536); with DataLoader workers, set_sharing_strategy('file_system') too, then "
        "launch_run again."),
    row("", r"OpenBLAS.{0,80}(?:pthread_create|thread)|pthread_create failed|can't start new thread"
     r"|(?:fork|clone|thread)\b.{0,60}[Rr]esource temporarily unavailable|libgomp: Thread creation", "", "stop",
     "No more threads for this user: set OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1, or raise ulimit -u, then "
        "launch_run again."),
    row("", r"unable to lock file|file locking", "", "stop",
     "This file system has no locks, or another process holds the file: open it with mode 'r', or set "
     "HDF5_USE_FILE_LOCKING=FALSE in env."),
    row("", r"Stale file handle|\[Errno 116\]|Transport endpoint is not connected", "", "retry",
     "The network file system dropped the file: retry from the last checkpoint; if it recurs, use a local disk."),
    row("", r"Read-only file system", "", "stop", "The file system is read-only: write to another directory, then "
        "launch_run again."),
    row("", r"Input/output error|\[Errno 5\]", "", "retry",
     "A disk failed to read or write: retry from the last checkpoint, and on another disk if it recurs."),
    row("", r"File name too long|Argument list too long", "", "stop",
     "A name or the command line is too long: shorten the run's name or pass a config file, then launch_run again."),
    row("", r"client_loop: send disconnect|packet_write_(?:wait|poll): Connection", "", "stop", LOST_SESSION),
    # --- rendering
    row("", _NO_RENDERING, _SIMULATOR, "stop",
        "EGL is set but does not work here: give the container the graphics driver "
        "(NVIDIA_DRIVER_CAPABILITIES=all, libegl1), or set MUJOCO_GL=osmesa.",
        log=r"(?<![Ss]et )(?<![Ss]etting )(?<![Tt]ry )(?<![Uu]se )(?<![`'\"])\b(?:MUJOCO_GL|PYOPENGL_PLATFORM)"
        r"(?:\W{1,4}| set to )egl\b"),
    row("", r"EGL (?:device )?display|PLATFORM_DEVICE extension", "", "stop",
        "Set MUJOCO_GL=egl and PYOPENGL_PLATFORM=egl; if they are, EGL lacks its driver: libegl1, in a container "
        "NVIDIA_DRIVER_CAPABILITIES=all, or use osmesa."),
    row("", _NO_RENDERING,
     _SIMULATOR, "stop",
     "No display to render on: set MUJOCO_GL=egl and PYOPENGL_PLATFORM=egl in env (osmesa without a GPU), then "
     "launch_run again."),
    row("",
     r"GLFWError|X11: The DISPLAY|could not open display|cannot connect to X server|Cannot connect to .{0,20}display"
     r"|NoSuchDisplay|windowless context|no display name|Display \S+ cannot be opened", "", "stop",
     "No display to render on: run without one (headless or rendering off, or xvfb-run), then launch_run again."),
    row("cuda_error other segfault", "",
     r"(?i:vkCreateInstance|vulkan.{0,60}(?:not supported|fail|error))|ERROR_INCOMPATIBLE_DRIVER", "stop",
     "Vulkan does not work here: install the GPU's graphics driver (in a container, NVIDIA_DRIVER_CAPABILITIES=all)."),
    # --- CUDA
    row("", r"libdevice", "", "stop",
     "XLA does not find CUDA: install its toolkit and set XLA_FLAGS=--xla_gpu_cuda_data_dir=..., then launch_run "
     "again."),
    row("cuda_error", r"[Oo]ut ?[Oo]f ?[Rr]esources?: ?shared memory, Required: (\d+), Hardware limit: (\d+)",
        "", "stop",
        "A Triton kernel wants {0} bytes of shared memory, this GPU has {1}: smaller blocks or num_stages, a newer "
        "Triton, or a larger GPU.", unless=r"\bvllm\b|\bsglang\b"),
    row("cuda_error", r"[Oo]ut ?[Oo]f ?[Rr]esources?: ?shared memory|shared memory, Required|OutOfResources", "",
        "stop",
     "A Triton kernel wants more shared memory than this GPU has: smaller block sizes or num_stages, or another "
     "attention backend."),
    row("cuda_error", r"runtime CuDNN library: ([\d.]+) but source was compiled with: ([\d.]+\d)", "", "stop",
        "The cuDNN found is {0}, the framework needs {1}: upgrade nvidia-cudnn to it, or unset LD_LIBRARY_PATH, then "
        "launch_run again."),
    row("cuda_error", r"not implemented for CUDA below version ([\d.]+\d)", "", "stop",
        "The driver's CUDA is older than {0}: use a host with a newer driver, or an older build of the framework."),
    row("cuda_error", r"(?m)no kernel image|sm_\d+ is not compatible", "", "stop",
        "This PyTorch has no {0}: pip install -U torch --index-url https://download.pytorch.org/whl/cu128 (2.7 or "
        "newer), then launch_run again.",
        log=r"(sm_1[02]\d) is not compatible with the current PyTorch"),
    row("cuda_error", r"(?m)no kernel image|sm_\d+ is not compatible", "", "stop",
        "This PyTorch does not support {0} any more: install an older one, built for it, or use a newer GPU.",
        log=r"(sm_[3-7]\d) is not compatible with the current PyTorch"),
    row("cuda_error", r"(?m)no kernel image|'sm_\d+' is not defined|sm_\d+ is not compatible|only supports Ampere"
        r"|compute capability"
     r"|PTX (?:JIT|was compiled)|unsupported toolchain|--gpu-architecture", "", "stop",
     "This build does not support this GPU: install one for its compute capability, or use a GPU that it supports."),
    row("cuda_error",
     r"(?i)driver.{0,80}(?:insufficient|too old|mismatch)|Driver/library version mismatch|forward compatibility", "",
     "stop",
     "The GPU driver does not fit this CUDA build: use a PyTorch for the driver's CUDA, or a host with a newer "
     "driver."),
    row("", r"Failed to find C compiler|(?:gcc|cc1plus): (?:command not found|No such file)", "", "stop",
        "Triton needs a C compiler: install gcc or set CC in env, or turn torch.compile off, then launch_run again."),
    row("cuda_error", r"deserialize object on a CUDA device", "", "stop",
        "No GPU is visible here: pass map_location='cpu' to torch.load, or launch_run with gpus=."),
    row("", r"(?m)CUDA Setup failed|bitsandbytes.{0,80}(?:compiled without|no GPU|not find)", "", "stop",
        "bitsandbytes does not fit this CUDA: install a version for it (`python -m bitsandbytes` shows what it "
        "finds)."),
    row("", r"(?i:gpu|cuda|device)", r"CUDA-enabled jaxlib is not installed", "stop",
        "JAX has no CUDA build here: install jax[cuda12] (or for the driver's CUDA), then launch_run again."),
    row("cuda_error",
     r"No CUDA GPUs are available|[Nn]o CUDA-capable device|Found no NVIDIA driver|Torch not compiled with CUDA"
     r"|CUDA device but torch\.cuda\.is_available|failed call to cuInit|NO_DEVICE|Unable to initialize backend"
     r"|couldn't communicate with the NVIDIA|invalid device ordinal|device < num_gpus", "", "stop",
     "The program sees no such GPU: launch_run with gpus=, check CUDA_VISIBLE_DEVICES and that the build has CUDA."),
    row("cuda_error", r"device-side assert|Assertion `", "", "stop",
     "An index is out of range in a kernel: check labels, token ids and vocabulary size; CUDA_LAUNCH_BLOCKING=1 shows "
     "the call."),
    row("cuda_error", r"(?i)fallen off the bus|NVLink error|\bXid\b", "", "retry_other_gpu",
        "The GPU failed in hardware: resume from the checkpoint on another GPU or host, and report this one (dmesg "
        "shows its Xid)."),
    row("cuda_error",
     r"(?i)devices? .{0,20}(?:busy|unavailable)", "",
     "retry_other_gpu", "Another process has this GPU (`nvidia-smi` shows it): retry on another GPU, or end that one."),
    row("cuda_error", r"CUBLAS_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)", "", "retry_changed",
        "cuBLAS failed, mostly for lack of memory or an index out of range: use a smaller batch; "
        "CUDA_LAUNCH_BLOCKING=1 shows "
        "the call."),
    row("cuda_error", r"cuDNN|CUDNN|DNN library", "", "retry",
     "cuDNN failed, often for lack of memory: retry once, then with a smaller batch, or align cuDNN with the "
     "framework."),
    # --- NCCL and rendezvous
    row("nccl_error", r"(?i)mismatched \w+ (?:tensor )?(?:shapes?|types?)", "", "stop",
        "The ranks call a collective with different tensors: make shapes and order equal on all (drop_last, padding), "
        "then launch_run again."),
    row("nccl_error", "", r"Duplicate GPU detected", "stop",
     "Two ranks use one GPU: start no more processes than GPUs, and set the device by LOCAL_RANK, then launch_run "
     "again."),
    row("nccl_error", r"[Tt]imeout|[Tt]imed out|timing out", _WORKS_ON, "retry_changed",
        "Another rank was still at work while the others waited: do that beforehand, or raise the timeout "
        "(ddp_timeout, "
        "init_process_group(timeout=))."),
    row("nccl_error", r"WorkNCCL\(SeqNum=1, .{0,200}(?:timing out|timed out)", "", "retry_changed",
        "The first collective never worked: change the path, NCCL_P2P_DISABLE=1 in env; if it recurs, NCCL_DEBUG=INFO "
        "shows the rank."),
    row("nccl_error", r"(?:timing|timed) out", r"NCCL|nccl", "retry",
        "One rank fell behind or died, and the others waited: retry from the last checkpoint; if it recurs, "
        "NCCL_DEBUG=INFO shows which."),
    row("nccl_error", r"^(?!.*(?:client|Rendezvous|TCPStore|Store)).*(?:timing|timed) out", "", "retry",
        "One rank fell behind or died, and the others waited: retry from the last checkpoint; its own log, which ends "
        "first, says why."),
    row("nccl_error", "", r"Mismatched NCCL version", "stop",
        "The ranks have different NCCL versions: install the same PyTorch on all nodes, then launch_run again."),
    row("nccl_error", "", r"NET/IB ?:? ?.{0,80}(?:status=\d+|vendor err|Got completion)|ibv_\w+ failed",
        "retry_changed",
        "InfiniBand lost the path to a peer: raise NCCL_IB_TIMEOUT (22) in env; if it recurs, check that node's link."),
    row("nccl_error", "", r"shared memory segment|/dev/shm/nccl", "retry_changed",
        "NCCL needs a larger /dev/shm: raise it (docker --shm-size or --ipc=host), or set NCCL_SHM_DISABLE=1 in env."),
    row("", r"Unable to find address for: (\S{1,40})", "", "stop",
        "This host has no interface {0}: set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to one that `ip -br addr` "
        "shows."),
    row("nccl_error network_error", r"trying to connect to \(([^,()]{1,80}), (\d+)\)",
     r"vllm_client|vllm_server", "stop",
     "TRL does not reach its vLLM server's port {1} at {0}: set vllm_server_host to that machine, open the port, "
     "restart `trl vllm-serve`."),
    row("nccl_error network_error", r"trying to connect to \((?!0\.0\.0\.0|localhost|127\.)([^,()]{1,80}), (\d+)\)", "",
     "retry_later",
     "Nothing answered at {0}:{1}: rank 0 must listen there (MASTER_ADDR, --rdzv_endpoint), the port be open; retry "
     "later when it does."),
    row("nccl_error network_error",
        r"network address of \(([\w.-]{1,80}), \d+\).*(?:gai error: ?-2|Name or service not known)", "", "stop",
        "This node cannot resolve {0}: give its IP address as MASTER_ADDR (--rdzv-endpoint), or correct DNS or "
        "/etc/hosts, then launch_run again."),
    row("nccl_error network_error",
     r"client socket has|[Rr]endezvous|Timed out after \d+ seconds? waiting for clients|TCPStore|MASTER_ADDR"
     r"|waiting for clients|connecting to .{0,60}(?:master|rdzv)|DistNetworkError|DistStoreError", "", "retry_later",
     "The ranks did not meet: check MASTER_ADDR, MASTER_PORT and that every node started; retry later when all do."),

    row("nccl_error", "", r"no socket interface found", "stop",
        "This host has no interface {0}: unset NCCL_SOCKET_IFNAME, or name one that `ip -br addr` shows there, then "
        "launch_run again.", log=r"NCCL_SOCKET_IFNAME(?: set by environment to |[=:] ?[\'\"]?)([\w^,.-]{2,40})"),
    row("nccl_error", r"(?i:no socket interface|socketStartConnect|NCCL_SOCKET_IFNAME|connection refused|no route)", "",
     "stop",
     "NCCL cannot reach the other ranks: set NCCL_SOCKET_IFNAME to their common interface, then launch_run again."),
    row("nccl_error", "", r"no socket interface found|socketStartConnect.{0,80}failed|No route to host", "stop",
     "NCCL cannot reach the other ranks: set NCCL_SOCKET_IFNAME to their common interface, then launch_run again."),
    row("nccl_error", r"Expected to have finished reduction|collective .{0,40}mismatch|different (?:shapes|sizes)", "",
     "stop", "The ranks do different things: find unused parameters or uneven batches, then launch_run again."),
    row("nccl_error", "", r"NCCL|\bnccl", "retry",
        "Ranks lost each other: retry as is; if it recurs, NCCL_DEBUG=INFO shows which rank."),
    # --- ports
    row("port_conflict", _PORT, "", "retry_other_port",
        "Port {0}{1} is taken: launch_run again with another number in deepspeed's --master_port.",
        log=r"deepspeed[./ ]launcher|\bdeepspeed (?:--|\S+\.py)|launch\.py:\d+:|runner\.py:\d+:"),
    row("port_conflict", _PORT, "", "retry_other_port",
        "Port {0}{1} is taken: launch_run again with another number in accelerate's --main_process_port.",
        log=r"accelerate(?: |/commands/)launch"),
    row("port_conflict", _PORT, "", "retry_other_port",
        "Port {0}{1} is taken: launch_run again with another --master-port of torchrun, or with --standalone.",
        log=r"\btorchrun\b|torch[./]distributed[./](?:run|launcher|elastic|launch)\b"),
    row("port_conflict", _PORT, r"(?i:vllm|sglang|uvicorn|fastapi|gradio|flask|api_server|http server|tensorboard)",
        "retry_other_port", "Port {0}{1} is taken: launch_run again with another --port, or stop the server that "
        "has it."),
    row("port_conflict", _PORT, "", "retry_other_port",
        "Port {0}{1} is taken: launch_run again with another (the program's own port option, or MASTER_PORT with "
        "torch), or "
     "end what holds it."),
)
# fmt: on
