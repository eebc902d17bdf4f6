"""Patterns of error messages and the kind of failure each proves: one table, specific before general. Pure.

They apply to the line of an exception (`Name: message`) and to the last message of a native library. They do not apply
to advice such as "consider CUDA_LAUNCH_BLOCKING=1", nor to ordinary output. Every pattern runs in linear time.
"""

from __future__ import annotations

import re
from functools import lru_cache

from mcp_server.text.regex import compile_lazily

# The driver's words differ, the three parts do not: which memory, that it was asked for, that it was not given.
_GPU_WORD = r"\b(?:GPU|CUDA|HIP|ROCm|XPU|NPU|VRAM|(?<!cpu )device)"
_OTHER_MEMORY = r"(?!.{0,80}(?:\bpinned|\bhost\b|device:CPU|on cpu\b))"
_NOT_GIVEN = r"(?:\bfail(?:ed|ure|s)?|\bunsuccessful|\bimpossible|\berror\b)"
_NOT_ALLOCATED = r"\b(?:fail(?:ed|ure|s)? to|(?:could|can) ?not|unable to|not able to|couldn't|can't) alloc"
NO_GPU_MEMORY = (
    rf"(?i:{_GPU_WORD}\w{{0,4}}\b{_OTHER_MEMORY}.{{0,40}}\bmemory\b.{{0,20}}\balloc\w*\b.{{0,20}}{_NOT_GIVEN}"
    rf"|(?<!shared )(?<!host )\bmemory alloc\w*\b{_OTHER_MEMORY}.{{0,20}}{_NOT_GIVEN}.{{0,60}}{_GPU_WORD}"
    rf"|{_NOT_ALLOCATED}{_OTHER_MEMORY}.{{0,60}}(?:{_GPU_WORD}.{{0,20}}\bmemory|\bmemory\b.{{0,30}}{_GPU_WORD})"
    rf"|{_GPU_WORD}\b.{{0,40}}{_NOT_ALLOCATED}{_OTHER_MEMORY}.{{0,40}}\bmemory)"
)

TEXT_CHARS = 600  # of a line are searched; a hostile line of this length costs 2 ms

# First match wins. Reasons for the order:
# - A symbol that the linker cannot find carries the name of its library, e.g. ncclCommRegister.
# - A full disk appears in the messages of any writer, such as TensorFlow's ResourceExhaustedError on device:CPU.
# - Ray's OutOfMemoryError and a failed host allocation are host memory, but say "out of memory" as CUDA does.
# - CUDA out of memory also says "CUDA error", and appears in NCCL's messages.
# - A CUDA error reported by the NCCL watchdog is a CUDA error. NCCL's own errors say "connection reset", as networks
#   do.
# - A port in use raises DistNetworkError. A dead Ray actor appears as a closed socket.
# - A refused token is an HTTP error. An unreachable hub ends in "could not find the file".
# - PhysX runs out of memory on the GPU, and names it a PhysX error; only its pinned memory is the host's.
# - A missing package is often wrapped in "could not load the configuration". Configuration precedes data because
#   "missing key" applies to both, and a named option is more specific.
_TABLE: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "import_error",
        (r"undefined symbol|cannot open shared object file|version `?(?:GLIBC|CXXABI)",),
    ),
    (
        "disk_full",
        (
            r"[Nn]o space left on device|ENOSPC|StorageFull|[Dd]isk quota exceeded|\[Errno 28\]|\[Errno 122\]|EDQUOT",
            r"(?i:not enough (?:free )?(?:disk )?space|(?:disk|database or disk|filesystem|file system) is full"
            r"|insufficient disk space)",
            r"PytorchStreamWriter failed writing|inline_container\.cc.{0,40}unexpected pos|MDB_MAP_FULL",
        ),
    ),
    (
        "oom_host",
        (
            r"ray\.exceptions\.OutOfMemoryError|(?:the |its )?node (?:was )?running low on memory",
            r"due to memory pressure",
            r"std::bad_alloc|bad_alloc\b|Cannot allocate memory|\[Errno 12\]|ENOMEM",
            r"CPUAllocator\b.{0,60}(?:can't allocate|not enough) memory",
            r"(?i:oom|memory|allocat).{0,200}device:CPU:\d|(?:allocator cpu|mklcpu)\b",
            r"[Uu]nable to allocate (?:array|[\d.]+ ?[KMGTPE]?i?B)\b|malloc of size \d+ failed",
            r"memory allocation of \d+ bytes failed|PhysX error: .{0,80}pinned memory",
            r"(?i:failed to malloc)(?!.{0,60}(?i:\bGPU|\bCUDA|\bdevice))",
            r"(?i:oom[-_ ]?kill)|OOMKilled|[Oo]ut of memory: Kill|Memory cgroup out of memory",
            r"DataLoader worker \(pid\W{0,3}\d+\W{0,2}\) is killed by signal: Killed",
            r"exceeded (?:job |step )?memory limit",
        ),
    ),
    (
        "oom_gpu",
        (
            r"(?:CUDA|HIP|XPU|NPU|MPS backend|GPU|VRAM)(?: [Ee]rror:| is| ran)? out of memory|(?:Prefill"
            r"|Decode) out of memory",
            r"cuda(?:Malloc|ErrorMemoryAllocation)",
            r"(?:CUDA|HIP)(?:_ERROR|ErrorOut|_OUT)_?[Oo](?:UT_OF|f)_?(?:MEMORY|Memory)|hipErrorOutOfMemory",
            r"CUDA_ERROR_OUT_OF_MEMORY",
            r"(?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER|HIPBLAS|MIOPEN)_STATUS_ALLOC_FAILED|ERROR_OUT_OF_DEVICE_MEMORY",
            r"\bOutOfMemoryError: (?!Task|Job)|Cuda failure (?:\d+ )?'out of memory'",
            r"torch\.(?:cuda\.)?OutOfMemoryError",
            r"cuda runtime error \(2\)|OOM when allocating",
            r"RESOURCE_EXHAUSTED: (?:Out of memory|Ran out of memory|Attempting to (?:reserve|allocate)"
            r"|Failed to allocate|.{0,80}(?:[Aa]llocat|[Oo]ut of memory))",
            r"ResourceExhaustedError|KV cache is needed, which is larger|tokens that can be stored in KV cache",
            r"No available memory for the cache blocks|Free memory on device",
            r"[Nn]ot enough memory\. Please try to (?:in|de)crease --mem",
            r"[Ff]ail(?:ed)? to allocate (?:GPU |device |cuda )memory|[Ee]rror out of memory at line",
            r"PhysX error: .{0,120}(?i:\bfail(?:ed)? to allocate)|(?i:failed to malloc)",
            r"Tried to allocate [\d.]+ ?[KMG]i?B",
            r"Status: out of memory|Dst tensor is not initialized",
            r"PxgCudaDeviceMemoryAllocator|(?i:gym cuda error: out of memory)",
            NO_GPU_MEMORY,
        ),
    ),
    (
        "divergence",
        (
            r"(?i:\bloss (?:is|became|was|=|:)? ?(?:infinite or )?(?:nan|inf|infinite|not finite|non-?finite|diverged"
            r"|diverging)\b)",
            r"(?i:\b(?:nan|inf|non-?finite)(?: or (?:inf|nan))?(?: value)?s? (?:found |detected |encountered )?(?:in"
            r"|for|during) (?:\w+ ){0,4}(?:loss|grad)\w*)",
            r"(?i:detected (?:nan|inf)\b|found (?:nan|inf) in|nan ?(?:/|or) ?inf (?:loss|grad)|\b(?:nan|inf) loss"
            r"|diverged with loss)",
            r"\bloss returned in .{1,60} is (?:nan|inf)\b",
            r"returned nan values in its \d+th output|invalid value \(nan\)|NanLossDuringTraining",
            r"(?i:gradients? (?:is|are|contains?) nan)",
            r"probability tensor contains either|to satisfy the constraint \w+\(.{0,80}found invalid values",
            r"parameter \w+ has invalid values",
            r"normal expects all elements of std|loss scale already at minimum|Minimum loss scale reached",
            r"loss is probably exploding|contained non-finite values",
            r"(?i:(?:too many|\d) (?:consecutive|successive) (?:overflow|nan|inf|non-?finite|skipped (?:step|update))"
            r"|training (?:has |is )?diverg|(?:loss|gradients?|policy|network|actions?) (?:has |have )?exploded)",
            r"(?i:\b(?:nan|inf)s? (?:detected |found )?in (?:the )?(?:loss|grad|policy|actions?|weights|parameters"
            r"|network|model|observations?))",
        ),
    ),
    (
        "port_conflict",
        (
            r"EADDRINUSE|[Aa]ddress already in use|\[Errno (?:98|48)\]|errno: (?:98|48)\b",
            r"Only one usage of each socket address",
            r"(?i:\bport:? ?`?\d+`?,?(?: but another process is utilizing it| is (?:already )?(?:in use|being used"
            r"|taken|occupied|allocated)| already in use))",
            r"another process is utilizing it|Cannot find (?:an )?empty port",
            r"trying to start at .{1,60} already running|(?i:no free ports? (?:found|available))",
            r"Session name \S{1,120} does not match persisted value",  # Ray: another head has this port
        ),
    ),
    (
        "cuda_error",
        (
            r"(?:CUDA|HIP|Cuda|Triton|Gym cuda|cuda runtime) ?[Ee]rror\b(?! ?\(?:? ?out of)|device-side assert",
            r"illegal memory access|misaligned address",
            r"Triton Error \[|CUDA_ERROR_|cudaError[A-Z]|hipError[A-Z]",
            r"CUDA(?: driver)? (?:initialization|version is insufficient)|CUDA unknown error",
            r"(?i:memory (?:capacity|usage) is (?:un|im)balanced)|occupied by other processes",
            r"no kernel image is available|[Nn]o CUDA-capable device|No CUDA GPUs are available|Found no NVIDIA driver",
            r"NVIDIA driver on your system is too old",
            r"(?:cuDNN|CUDNN|cuBLAS|CUBLAS|cuSOLVER|CUSOLVER|cuSPARSE|CUSPARSE|cuFFT|CUFFT|MIOpen|rocBLAS"
            r"|hipBLAS)(?:\w*_STATUS_| ?[Ee]rror)",
            r"cudnnException",
            r"Unexpected error from cudaGetDeviceCount|Torch not compiled with CUDA|NVML\w*Error",
            r"Driver/library version mismatch|couldn't communicate with the NVIDIA driver",
            r"uncorrectable (?:NVLink|ECC|memory)|ECC error|fallen off the bus|\bXid\b|unspecified launch failure",
            r"DNN library (?:initialization failed|is not found)",
            r"(?:Xla|Jax)RuntimeError: (?:INTERNAL|UNIMPLEMENTED|FAILED_PRECONDITION|UNKNOWN|NOT_FOUND|ABORTED)"
            r"(?!.{0,80}(?:NCCL|nccl|RCCL))",
            r"valid cuDNN algorithm|unable to find an engine to execute|CUDA failure \d+",
            r"libdevice not found|Unable to initialize backend '(?:cuda|gpu|rocm|tpu)'|failed call to cuInit",
            r"CUDA ?(?:backend|driver).{0,40}(?:failed|not (?:found|initialized))|nvrtc: error|NVRTC_ERROR",
            r"(?:PhysX|PhysX Internal CUDA) error|(?i:gpu.foundation.{0,80}(?:failed|no device))",
            r"[Ff]ailed to create any GPU devices|fail to launch|(?i:gym cuda error)",
            r"Attempting to deserialize object on a CUDA device|FlashAttention only supports Ampere",
            r"cuDNN failed to initialize|Blas \w+ launch failed|requires? (?:a )?GPU with compute capability",
            r"OutOfResources|PTX JIT|ptxas (?:fatal|`? ?failed)|`ptxas` failed",
        ),
    ),
    (
        "nccl_error",
        (
            r"\bNCCL (?:error|Error|communicator|operation|watchdog|version)|\bnccl[A-Z]\w+",
            r"ProcessGroup(?:NCCL|Gloo|HCCL|XCCL|MPI)|NCCL_(?!DEBUG\b)|NCCL failure|\bRCCL\b|\bHCCL\b",
            r"[Ww]atchdog (?:caught collective|thread|got stuck)|collective operation timeout|store[ -]based barrier",
            r"\bTimed out after \d+ seconds? waiting for clients",
            r"[Gg]loo\b|Connection closed by peer \[|remote process exited|DistBackendError|DistStoreError",
            r"HorovodInternalError|Rendezvous\w*Error|wait timeout after \d+ms",
            r"RuntimeError: (?:Connection reset by peer|Broken pipe|Socket Timeout|Stop_waiting response)",
            r"(?:Xla|Jax)RuntimeError: (?:UNAVAILABLE|DEADLINE_EXCEEDED)|Duplicate GPU detected",
            r"process group .{0,40}timed out",
            r"[Tt]imed out (?:initializing|waiting .{0,20}for) (?:process group|all ranks)|collective .{0,40}mismatch"
            r"|mismatch between collectives",
        ),
    ),
    (
        "ray_error",
        (
            r"(?:[Aa]ctor|[Rr]aylet|GCS|[Nn]ode) .{0,60}(?:died|is dead|is unavailable|unexpectedly|marked dead)",
            r"Version mismatch: The cluster was started with",
            r"ActorDied|RayActorError|WorkerCrashed|RaySystemError",
            r"ray\.exceptions\.(?!RayTaskError|OutOfMemory|GetTimeoutError: .{0,40}nccl)\w|unexpected system error",
            r"[Ff]ailed to connect to (?:GCS|(?:the )?Ray\b)|[Uu]nable to connect to (?:GCS|(?:the )?Ray\b)",
            r"Could not find any running Ray instance|current node (?:timed out during startup|has not been updated)",
            r"Failed to (?:register worker|start the dashboard|start raylet)",
            r"Ray cluster.{0,40}(?:died|failed|not (?:running|available|found|reachable))|gcs_server|raylet",
        ),
    ),
    (
        "auth_error",
        (
            r"\b40[13] (?:Client )?(?:Error|Forbidden|Unauthorized|GET|HEAD|POST|PUT)\b|HTTP Error 40[13]",
            r"\(40[13]\) when|returned error 40[13]\b|Exception: \(?40[13]\b",
            r"(?:[Ee]rror code|[Ss]tatus(?: code)?|HTTP|Response)\W{0,3}40[13]\b|\b(?:Unauthorized|Forbidden) for url",
            r"(?i:gated (?:repo|dataset|model)|access to (?:model|dataset) .{1,120} is restricted|must have access to"
            r" it|awaiting a review|private repo)",
            r"(?i:(?:invalid|incorrect|missing|no|bad|expired)(?: \w+){0,2} (?:api[ _-]?key|credentials|access token"
            r"|user token|auth\w* token)\b)",
            r"(?i:(?:api[ _-]?key|access token|auth token|hf_token|credentials)\b.{0,60}(?:not (?:configured|set"
            r"|found|provided|valid)|must be|is (?:missing|required|invalid)|expired))",
            r"KeyError: '\w*(?:API_KEY|_TOKEN|SECRET)'|AuthenticationError|AuthorizationError",
            r"(?i:permission denied \(publickey|could not read (?:username|from remote)|unable to locate"
            r" credentials|pull access denied)",
            r"Access ?Denied|PermissionError: (?:Forbidden|Unauthorized)",
            r"InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|LocalTokenNotFound",
            r"(?:GatedRepo|NoCredentials|DefaultCredentials)Error|Could not find kaggle\.json",
            r"do(?:es)? not have (?:permission|access) to",
            r"(?i:not logged in|(?:please|need to|must) (?:log ?in|authenticate)|login required|user is not"
            r" authenticated)",
            r"[Aa]uthentication failed|[Ii]nvalid (?:user(?:name)? )?token\b",
        ),
    ),
    (
        "network_error",
        (
            r"[Cc]onnection reset by peer",
            r"Max retries exceeded|Name or service not known|[Tt]emporary failure in name resolution",
            r"nodename nor servname|[Cc]ould not resolve|getaddrinfo failed|No address associated",
            r"unable to resolve|[Nn]etwork is unreachable|No route to host",
            r"[Cc]onnection (?:refused|timed out|aborted|error)",
            r"\((?:SlowDown|Throttling\w*|RequestLimitExceeded|ServiceUnavailable|InternalError)\) when calling",
            r"client_loop: send disconnect|packet_write_(?:wait|poll): Connection",
            r"[Rr]ead timed out|Remote end closed connection|[Hh]andshake (?:operation )?timed out",
            r"\[Errno (?:101|110|111|113|-2|-3|-5)\]|\bHTTP(?: Error)? (?:429|5\d\d)\b",
            r"\b(?:429|5\d\d) (?:Client|Server) Error|Error code: (?:429|5\d\d)|Too Many Requests|[Rr]ate limit",
            r"ProxyError|SSLError|CERTIFICATE_VERIFY_FAILED|SSL: |[Tt]unnel connection failed",
            r"[Cc]annot connect to (?:host|proxy)|StatusCode\.(?:UNAVAILABLE|DEADLINE_EXCEEDED)",
            r"couldn't connect to '?https?:|[Cc]ouldn't reach |[Cc]annot reach https?:|offline mode is enabled",
            r"outgoing traffic has been disabled|trying to locate the (?:file|files) on the Hub",
            r"client socket has (?:timed out|failed to connect)|Run initialization has timed out",
            r"(?:Service|Bad Gateway|Gateway Time-?out).{0,20}Unavailable|Bad Gateway|unable to access 'http",
            r"urlopen error|Failed to get url|HTTP code: (?:429|5\d\d)|Error while (?:down|up)loading"
            r"|[Ff]ailed to (?:download|fetch) |early EOF|RPC failed",
            r"(?:Download|Connection).{0,30}interrupted",
            # curl's exit codes: no host, no connection, partial file, timeout, TLS, nothing sent or received
            r"\bcurl(?:\b.{0,200}\bexit(?: status| code)?:? |: \()(?:[567]|16|18|28|35|52|55|56|92)\b",
        ),
    ),
    (
        "import_error",
        (
            r"Could not load lib\w+\b|is not currently imported|[Hh]ave you installed",
            r"numpy\.\w+ size changed|_ARRAY_API not found|NumPy 1\.x|partially initialized module",
            r"No module named|cannot import name|DLL load failed|Failed to import \w|ModuleNotFoundError",
            r"packages that were not found in your environment|(?i:incompatible with (?:numpy|torch|python))",
            r"(?:DistributionNotFound|VersionConflict|PackageNotFoundError)",
            r"(?i:n[o']t (?:been |yet |be )?(?:installed|available in your environment)\b)",
            r"No matching distribution found|No solution found when resolving"
            r"|Executable doesn't exist at .{0,200}playwright",
            r"requires? [\w-]+ to be installed|compiled with different CUDA|versions are incompatible"
            r"|operator torchvision::",
            r"(?i:numpy is not available)|(?:need|have) .{0,60}\binstalled",
            r"CUDA_HOME (?:environment variable is not set|does not exist)|Ninja is required|Error building extension",
            r"CUDA [Ss]etup failed|detected CUDA version \(?[\d.]+\)? mismatches",
            r"Installed CUDA version [\d.]+ does not match",
            r"fatal error: \S{1,80}\.(?:h|hpp|cuh): No such file|Failed to find C compiler",
            r"Cuda extensions are being compiled with a version of Cuda",
            r"DO NOT MATCH THE HASHES",
            r"conflicting dependencies|ResolutionImpossible|Run 'conda init'|newer than and incompatible with jax",
            r"(?i:please (?:pip |first )?install |pip install -?)|version mismatch.{0,40}(?:install|upgrade)",
            r"(?i:requires? (?:the )?(?:python |package )?`?'?[\w-]+(?:>=|==|~=|<=)\d)",
        ),
    ),
    (
        "config_error",
        (
            r"environment variable \w+ expected, but not set|Target modules .{1,300} not found in the base model",
            r"global size of its dimension \d+ should be divisible|W&B API: entity \S+ not found"
            r"|returned error 404: .{0,80}\bentity \S+ not found",
            # of Ray's actors
            r"\bnamespace\b.{0,80}\balready (?:taken|exists)|already (?:taken|exists) in the namespace\b",
            # of servers and clusters
            r"[Pp]lease set (?:at least|only) one of|Model architectures? .{0,80} not supported"
            r"|LoRA rank \d+ is greater",
            r"[Tt]otal available GPUs|You asked for .{0,80} per trial|[Bb]float16 is only supported on GPUs",
            r"Package size \([\d.]+|maximum context length is \d|[Tt]he model `[^`]{1,80}` does not exist",
            r"Failed to merge the Job's runtime env|No joints found for actuator group",
            r"placement group bundle index \d+ is invalid|No runs present in the directory",
            # values and combinations that a trainer, an optimizer or a tracker refuses
            r"Attempting to unscale FP16|flatten tensors with uniform dtype|(?:path|file\w*) provided must end in"
            r"|as action spaces but|No default encoder config|Changing param values is not allowed"
            r"|Undefined dataset \S"
            r"|Could not interpret (?:\w{1,40} ){1,4}identifier|Must use `?\w+Policy|didn't pass an `?eval_dataset"
            r"|training requires a train_dataset|max_steps has to be specified|purely quantized models"
            r"|loaded in .{0,30}(?:8|4)[- ]?bit.{0,60}different device",
            r"Invalid (?:learning rate|momentum|weight_decay|beta\w*|epsilon|lr|dampening)\b|Unknown c10d backend"
            r"|Invalid backend: |exceed bound|Invalid Parameter format for|Unknown objective",
            r"(?<!\w)[`'\"]?(?!input_|attention_|inputs_|hidden_)(?:--[a-z][\w-]+"
            r"|[a-z](?=\w{0,40}_)\w{1,60})[`'\"]?(?:=\w{1,40})?(?: \w{1,40}){0,4}"
            r" (?:must be (?:one of|specified|set\b|either|a multiple|smaller|less|greater|larger|at least|provided)"
            r"|can(?:not| not|'t) be (?:both |simultaneously )?(?:set|used|combined|enabled|specified|configured)"
            r"|(?:is|are) (?:not supported|incompatible|not compatible) (?:with|when|for|together)"
            r"|(?:can|may) only be (?:used|set|enabled)|has to be (?:set|specified)|(?:is|are) mutually)",
            r"(?i:\b(?:cannot|can't|can not) (?:both )?(?:set|specify|use|combine|enable|configure) (?:both )?"
            r"[`'\"]?-{0,2}\w{1,40}[_-]\w{1,40}[`'\"]?.{0,60}(?:\band\b|with|at the same time|together))",
            r"DP world size of \d+ but the current|tokenizer\.chat_template is not set|\bXML Error: "
            r"|is not in the [\w:]{1,60} registry",
            # of Hydra's overrides
            r"^(?:mismatched|extraneous) input '|^no viable alternative at input '|^token recognition error at: ",
            r"omegaconf\.|hydra\.|\byaml\.|jsonargparse|pydantic|ml_collections|\bgin\.|\btyro\b|draccus",
            r"simple_parsing|argparse\.|absl\.flags|confuse|toml\w*\.|dacite\.|configargparse|OmegaConf",
            r"not in struct|[Cc]ould not override|[Mm]issing mandatory value|Unsupported interpolation",
            r"InterpolationKey|validation errors? for|Extra inputs are not permitted",
            r"[Uu]nrecogni[sz]ed (?:arguments?|options?|flags?|keys?|config)",
            r"not used by the HfArgumentParser|(?:arguments? (?:is|are) required|required arguments?)|invalid choice",
            r"Config name is missing|Allowed precision values|correct the following DeepSpeed config values",
            r"DeepSpeedConfig|MisconfigurationException|[Cc]heck batch related parameters",
            r"(?:--)?(?:bf16|fp16|tf32)\b.{0,60}(?:requires?|not supported|doesn't support|can only be used)",
            r"doesn't support bf16|load_best_model_at_end|save and eval(?:uation)? strategy|mutually exclusive",
            r"'[^']{0,80}' is not a valid \w+$",
            r"(?i:(?:invalid|unknown|unsupported|unexpected|bad) (?:value|config\w*|argument|option|setting|choice"
            r"|flag|optimizer|scheduler|model type|hyper-?parameter|key in config|config key))",
            r"object has no attribute.{0,60}Namespace",
            r"'(?:Namespace|DictConfig|ConfigDict|EasyDict|AttrDict|CfgNode|SimpleNamespace|FrozenConfigDict)' object"
            r" has no",
            r"Non-existent config key|Key .{0,60} (?:not in|is not in|missing from) config",
            r"(?i:batch.?size.{0,80}(?:must be|should be|not) .{0,40}(?:divisible|multiple|equal)"
            r"|world.?size.{0,60}divisible|\bconfig(?:uration)? (?:file )?(?:error|is (?:invalid|missing))|in (?:the"
            r" )?config(?:uration)?\b.{0,40}(?:must|required|missing))",
            r"Tensorboard already patched|[Ee]nvironment `?[\w/-]+`? (?:doesn't exist|not found|in the registry)",
            r"(?:Name|Namespace|Version)NotFound|gym\w*\.error\.(?:DeprecatedEnv|UnregisteredEnv)",
        ),
    ),
    (
        "data_error",
        (
            r"does not appear to have a file named|Found 0 (?:files|images)|[Ll]abel must be in \[0, ?(?:num_class|\d)",
            r"No such file or directory|Error opening file '|[Uu]nable to (?:synchronously )?open (?:file|object)"
            r"|[Ee]rror no file named",
            r"[Cc]an't load (?:tokenizer|the (?:model|configuration)|feature|image|config)",
            r"is not a valid model identifier|[Ii]ncorrect path_or_model_id",
            r"Repo id must be in the form|PytorchStreamReader|failed finding central directory|invalid load key",
            r"Ran out of input|pickle data was truncated|unexpected EOF|Unexpected end of",
            r"end-of-stream marker|wrong checksum|[Cc]hecksum (?:mismatch|failed|error)|NoSuch(?:Key|Bucket)\b"
            r"|No data left in file|Failed to interpret file|No valid stream found in input file"
            r"|Could not push packet to decoder|Invalid frame index=\d|moov atom not found"
            r"|cannot mmap an empty file"
            r"|mmap length is greater than file size",
            r"(?i:cannot identify image|image file is truncated|broken data stream|truncated (?:file|png|jpeg|header)"
            r"|(?:is|are|file|data|archive|shard|parquet|checkpoint) (?:is |are )?(?:corrupt|truncated|malformed)"
            r"|corrupt(?:ed)? )",
            r"while deserializing header|HeaderTooLarge|InvalidHeader|MetadataIncompleteBuffer|[Pp]arquet magic bytes",
            r"Couldn't find (?:a dataset|any data|file)|doesn't exist on the Hub|bad (?:magic|zip)",
            r"not a (?:zip|gzip|tar|valid (?:zip|image|hdf5|checkpoint|parquet|safetensors|tfrecord)) ?file",
            r"LookupError: Resource \S+ not found|\[E050\] Can't find model",
            r"Column name \[.{0,200}\] not in the dataset|Unknown split \"|Expected [xy]_(?:min|max) for bbox"
            r"|timestamps unexpectedly violate the tolerance",
            r"DECORDError|moov atom not found|data contains only one class",
            r"(?i:contains? NaN\b(?!.{0,40}(?:loss|grad)))",
            r"Stale file handle|Input/output error|Read-only file system|num_samples should be a positive",
            r"\b404 (?:Client Error|Not Found)|HTTP Error 404|RepositoryNotFound|EntryNotFound",
            r"(?i:(?:dataset|data ?loader|file list|training set|split) (?:is|was|contains) (?:empty|no ))",
            r"(?i:(?:checkpoint|dataset|data|file|folder|directory|path|weights?|shard|image|annotation|vocab\w*"
            r"|tokenizer)s?\b.{0,200}(?:not found|does(?: not|n't) exist|do not exist|not exist\b|(?:is|are) missing"
            r"|could ?n.t be found|could not be found|cannot be found))",
            r"(?i:(?:could not|couldn't|cannot|can't|unable to|failed to) (?:find|open|read|load)"
            r" .{0,60}(?:checkpoint|dataset|data|file|folder|directory|weights?|shard|image|annotation))",
            r"(?i:no (?:\w+ ){0,3}(?:files?|images?|checkpoints?|data|samples|shards|directory) (?:were |was"
            r" )?(?:found|in|at|exists?))",
        ),
    ),
    (
        "stall",
        (
            r"DataLoader timed out after \d",
            r"(?i:no (?:new )?(?:batch|data|step|progress|heartbeat)\w* (?:\w+ ){0,5}(?:for|in|within|after) \d)",
        ),
    ),
    (
        "timeout",
        (r"(?i:(?:exceeded|reached|ran over) (?:the |its |a )?(?:\w+ )?(?:time ?(?:budget|limit)|wall ?time))",),
    ),
    (  # what agents that are trained depend on: neither the program's error nor the machine's
        "other",
        (
            r"Too many open files|\[Errno 2[34]\]|received \d+ items of ancdata|EMFILE|ENFILE",
            r"(?i:\btool[ _-]?(?:call|use|execution|server)?s?\b.{0,80}\btim(?:e[ -]?out|ed[ -]?out))|ToolTimeout",
            r"(?i:\b(?:allocat|acquir|reserv)\w* (?:(?:an?|the|free|new) )*env(?:ironment)?s?\b)",
            r"(?i:\benv(?:ironment)?s? (?:pool |worker )?allocation\b)|Env(?:ironment)?Allocation",
        ),
    ),
)
ERROR_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, compile_lazily("|".join(p))) for kind, p in _TABLE
)


def match_error_kind(text: str) -> str | None:
    """Return the kind of failure that ``text`` proves, or None."""
    return _match_error_kind(text[:TEXT_CHARS])


@lru_cache(maxsize=2_048)
def _match_error_kind(text: str) -> str | None:
    return next((kind for kind, pattern in ERROR_PATTERNS if pattern.search(text)), None)
