"""Next steps that a line beside the error decides: what was asked for and what is there, a named file, a setting."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

_ANY = ""
_BAD = "data_error python_error config_error"
_CACHE = (
    r"(?i:datasets[/\\](?:builder|arrow_writer|load|download)|huggingface_hub|hf_hub|/\.cache/huggingface|load_dataset)"
)
_SAVES = r"(?i:torch[/\\]serialization|torch\.save|save_pretrained|save_checkpoint|_save\b|PytorchStreamWriter|orbax)"
_FROM_FILE = (
    r"(?s).*(?i:resum|load|restor|read)\w*\b[^\n]{0,60}?[ '\"(=](/?[\w./@+=-]{2,200}\.(?:pth?|ckpt|bin|safetensors"
    r"|pkl|npz|tar))\b"
)
_ENVIRONMENT = r"(?:NameNotFound|NamespaceNotFound|VersionNotFound|[Ee]nvironment) .{0,20}[`'\"]"
_NEAR_NAME = r"Did you mean"
# First match wins: special before general.
# fmt: off
ROWS = (
    # --- what was asked for, and what there is
    row("ray_error config_error killed", r"available node types|cannot be scheduled|infeasible|enough resources"
        r"|TIME LIMIT", "", "stop",
        "A trial asks for {0}, the cluster has {1}: lower num_workers (ScalingConfig), or add nodes.",
        log=r"You asked for (.{3,60}?) per trial, but the cluster only has (.{3,60}?) available"),
    row("ray_error", r"(?i:runtime_?env)", "", "stop",
        "The runtime_env asks for {0}, which does not exist (there are {1}): correct it, then launch_run again.",
        log=r"satisfies the requirement (\S{1,60}) \(from versions: [^)\n]{0,600}?"
        r"((?:[^,)\n]{1,20}, ){0,2}[^,)\n]{1,20})\)"),
    row(_ANY, r"TPU is already in use by process with pid (\d+)", "", "stop",
        "Process {0} holds the TPU: if it is a leftover of yours, stop it (and remove /tmp/libtpu_lockfile), else "
        "wait, then launch_run again."),
    # --- a file that another line names
    row(_BAD, r"OpenCV|NoneType", "", "stop",
        "{0} is missing or damaged: restore it or leave it out, and skip what cv2.imread gives as None {at}.",
        log=r"(?s).*imread_\('([^'\n]{1,300})'\): can't open"),
    row("data_error", r"PytorchStreamReader|central directory|pickle data was truncated|Ran out of input"
        r"|HeaderTooLarge|MetadataIncomplete", "", "stop",
        "The last file that it loads, {0}, is cut or damaged: use the checkpoint before it, or fetch it again, then "
        "launch_run again.", log=_FROM_FILE),
    # --- columns and labels
    row(_ANY, r"did not return a loss from the inputs", "", "stop",
        "The batch has no labels, the columns {0} were dropped: rename the one with the labels to `labels` "
        "(rename_column) before the Trainer.", log=r"have been ignored: ([^\n]{2,160}?)\. If "),
    row(_ANY, r"not contained within .{0,20}observation space", "", "stop",
        "reset gives {0} ({1}), the space is {2}: cast it to that dtype, and clip it or widen low and high.",
        log=r"reset_obs: (\[[^\]\n]{1,60}\])\s+reset_obs_type: (\w{1,20})\s+env\.observation_space: "
        r"(Box\([^\n]{1,60}\))"),
    row(_ANY, r"KeyError: '(prompt|chosen|rejected|completion|messages)'", r"[/\\]trl[/\\]", "stop",
        "The data has no column {0}: rename its columns to what this trainer takes (DPO: prompt, chosen, rejected) "
        "before it, then launch_run again."),
    # --- access that was asked for
    row(_ANY, r"(?i)gated|restricted|awaiting a review|\b403\b", "", "stop",
        "Access to {0} was asked for and awaits its owners: wait for their approval, or use an ungated model or "
        "mirror, then launch_run again.",
        log=r"[Yy]our request to access (?:model |dataset )?(\S{1,90}) is awaiting a review"),
    row(_ANY, r"(?i)gated|restricted|\b403\b", "", "stop",
        "The owners of {0} rejected this account's request: use another account, an ungated model or a mirror, then "
        "launch_run again.",
        log=r"[Yy]our request to access (?:model |dataset )?(\S{1,90}) has been rejected"),
    row(_ANY, r"rights to create a (?:model|dataset|space) under the namespace \"?([\w.-]{1,60})", "", "stop",
        "This token may not write under {0}: name one with write rights of its member in secrets, or push under "
        "another name (hub_model_id)."),
    # --- disks: what fills them
    row("disk_full", r"[Qq]uota|EDQUOT|\[Errno 122\]", _CACHE, "stop",
        "This user's quota is used up by the Hub's cache: set HF_HOME in env (or cache_dir=) to scratch, and delete "
        "the old cache (`quota -s`)."),
    row("disk_full", r"[Qq]uota|EDQUOT|\[Errno 122\]", _SAVES, "stop",
        "This user's quota is used up, not the disk (`quota -s`, `lfs quota`): delete old checkpoints, or write them "
        "to scratch."),
    row("disk_full", r"[Qq]uota|EDQUOT|\[Errno 122\]", r"(?i)\bpip\b|conda", "stop",
        "This user's quota is used up by packages: set PIP_CACHE_DIR (CONDA_PKGS_DIRS) and the environment on "
        "scratch (`quota -s`)."),
    row("disk_full", r"[Qq]uota|EDQUOT|\[Errno 122\]", r"wandb", "stop",
        "This user's quota is used up (`quota -s`): set WANDB_DIR and WANDB_CACHE_DIR in env to scratch, and delete "
        "old runs there."),
    row("disk_full", r"No space left|\[Errno 28\]", _CACHE, "stop",
        "The disk of the Hub's cache is full: set HF_HOME in env (or cache_dir=) to a larger one, and delete what is "
        "old (`hf cache`)."),
    # --- host memory under Ray, by what takes it
    row("oom_host", "", r"(?i)openrlhf", "retry_changed",
        "Host memory ran out: offload less to it (turn --adam_offload, --ref_reward_offload off), or use more nodes or "
        "host memory."),
    row("oom_host", "", r"(?i)\bverl\b|WorkerDict|actor_rollout_ref", "retry_changed",
        "Host memory ran out: set fsdp_config.param_offload and optimizer_offload to False, lower "
        "data.train_batch_size, or use more nodes."),
    # --- tasks that another package registers
    row(_ANY, _ENVIRONMENT + r"(?:ALE/|\w{1,40}NoFrameskip|\w{1,40}-ram\b|(?:Breakout|Pong|SpaceInvaders|Seaquest|Qbert"
        r"|BeamRider|Enduro|MsPacman|Freeway|Asterix|MontezumaRevenge)\b)", "", "stop",
        "Atari is not registered: pip install ale-py (gymnasium[atari]), and gym.register_envs(ale_py) before "
        "gym.make {at}.",
        unless=_NEAR_NAME),
    row(_ANY, _ENVIRONMENT + r"(?:MiniGrid|BabyAI)", "", "stop",
        "MiniGrid is not registered: pip install minigrid, and import minigrid before gym.make {at}.",
        unless=_NEAR_NAME),
    row(_ANY, _ENVIRONMENT + r"(?:Fetch(?:Reach|Push|Slide|Pick)|HandManip|HandReach|Adroit|PointMaze|AntMaze"
        r"|FrankaKitchen)", "", "stop",
        "This task is of gymnasium-robotics: pip install it, and gym.register_envs(gymnasium_robotics) before "
        "gym.make {at}.",
        unless=_NEAR_NAME),
    row(_ANY, _ENVIRONMENT + r"Panda(?:Reach|Push|Slide|Stack|Flip|PickAndPlace)", "", "stop",
        "This task is of panda-gym: pip install panda-gym, and import panda_gym before gym.make {at}.",
        unless=_NEAR_NAME),
    row(_ANY, _ENVIRONMENT + r"(?:highway|merge|roundabout|parking|intersection|racetrack)\b", "", "stop",
        "This task is of highway-env: pip install highway-env, and import highway_env before gym.make {at}.",
        unless=_NEAR_NAME),
    row(_ANY, _ENVIRONMENT + r"(?:halfcheetah|hopper|walker2d|ant|maze2d|antmaze|kitchen|pen|door|hammer)-"
        r"(?:random|medium|expert|umaze|large|human|cloned|complete|mixed|partial)", "", "stop",
        "This task is of D4RL: install d4rl and import it before gym.make {at}, or load the data with Minari.",
        unless=_NEAR_NAME),
    row(_ANY, _ENVIRONMENT + r"Isaac-", "", "stop",
        "Isaac Lab's tasks are not registered: import isaaclab_tasks after AppLauncher started and before gym.make "
        "{at}, or correct the name.",
        unless=_NEAR_NAME),
    row(_ANY, _ENVIRONMENT + r"(?:PickCube|PushCube|StackCube|PegInsertion|LiftCube|TurnFaucet)", "", "stop",
        "This task is of ManiSkill: pip install mani_skill, and import mani_skill.envs before gym.make {at}.",
        unless=_NEAR_NAME),
    # --- trackers and studies
    row(_ANY, r"(?:Unable to (?:attach to|resume)|resum\w+) (?:a )?run \(?([\w-]{1,60})|resume='must'", r"(?i)wandb",
        "stop",
        "wandb cannot resume run {0} (deleted, or of another project): pass resume='allow' or a new id {at}.",
        log=r"resume\s*=\s*['\"]must|resume='?must|was deleted"),
    row(_ANY, r"database is locked|StorageInternalError", r"optuna", "retry_changed",
        "Another process holds the SQLite file: change the storage to JournalStorage or PostgreSQL (SQLite serves one "
        "writer, no NFS) {at}.", log=r"(?i)database is locked"),
    # --- values that are None
    row("python_error config_error", r"expected str, bytes or os\.PathLike object, not NoneType",
        r"tokenization_|vocab_file|spm_file", "stop",
        "The tokenizer's files are not all there (tokenizer.model or vocab.json): fetch them, or use_fast=True, "
        "{at}."),
    row("python_error config_error", r"expected str, bytes or os\.PathLike object, not NoneType", "", "stop",
        "A path is None {at}: give the option or variable that names it, then launch_run again."),
    row(_ANY, r"Support for this operator was added in version (\d+)", "", "stop",
        "ONNX has this operator from opset {0}: pass opset_version={0} (or higher) to the export {at}, then launch_run "
        "again."),
    row(_ANY, r"_amp_foreach_non_finite_check_and_unscale\w*\W+not implemented for 'BFloat16'", "", "stop",
        "The gradients are bf16, but fp16's GradScaler is on: set bf16=True and fp16=False, or load the weights in "
        "float32, then launch_run again."),
    row(_ANY, r"\[Errno 11\] Resource temporarily unavailable", r"(?i)fork|pthread|spawn|\.start\(\)", "stop",
        "No more threads for this user: set OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1, or raise ulimit -u, then "
        "launch_run again."),
    # --- GPUs with a fault
    row("cuda_error", r"(?i)\bECC\b|uncorrectable", "", "retry_other_gpu",
        "Rank {1}'s GPU on {0} has a memory fault (ECC): resume on another GPU without that node, and have it "
        "drained and reset (nvidia-smi -q).", log=r"Root Cause[\s\S]{0,200}?host +: (\S{1,60})\s+rank +: (\d+)"),
    row("cuda_error", r"(?i)\bECC\b|uncorrectable", "", "retry_other_gpu",
        "The GPU has a memory fault (ECC): resume from the checkpoint on another GPU, and have this one reset "
        "(nvidia-smi -q -d ECC)."),
)
# fmt: on
