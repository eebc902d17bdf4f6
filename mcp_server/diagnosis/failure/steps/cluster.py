"""Next steps after failures of schedulers, mpirun, ssh, containers and Kubernetes."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

# First match wins: special before general.
# fmt: off
ROWS = (
    # --- mpirun
    row("", r"not enough slots available", "", "stop",
        "mpirun has fewer slots than processes: lower -np, give slots=N in the hostfile (or --host h:N), or add "
        "--oversubscribe."),
    row("", r"attempt to run as root", "", "stop",
        "mpirun refuses root: add --allow-run-as-root (or OMPI_ALLOW_RUN_AS_ROOT=1 and ..._CONFIRM=1 in env), then "
        "launch_run again."),
    row("", r"MPI processes are unable to reach each other", "", "stop",
        "The nodes' MPI has no common path: --mca btl self,vader,tcp --mca btl_tcp_if_include IFACE (a shared "
        "interface), "
        "then launch_run again."),
    row("", r"(?:ORTE|PRTE|PRRTE) (?:was unable|has lost)|unable to reliably start", "", "stop",
        "mpirun could not start its daemon on another node: check `ssh NODE true` without questions, and the same "
        "MPI on its PATH."),
    row("", r"launcher '(\w+)' not installed|(pdsh): (?:command )?not found", "", "stop",
        "DeepSpeed starts other nodes by {0}{1}: install it, or pass --launcher openmpi, slurm or (one node) none, "
        "then launch_run again."),
    # --- ssh
    row("", r"[Hh]ost key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED"
        r"|Host key for (\S{1,60}) has changed",
        "", "stop",
        "The host key of {1} changed: if that is right, `ssh-keygen -R {1}` and `ssh-keyscan {1} >> "
        "~/.ssh/known_hosts`, "
        "then launch_run again.", log=r"Host key for (\S{1,60}) has changed"),
    row("", r"^(?:[\w.-]+@[\w.-]+: )?([\w.-]{1,60}): Host key verification failed", "", "stop",
        "The host key of {0} is unknown here: `ssh-keyscan {0} >> ~/.ssh/known_hosts` (each node once), then "
        "launch_run "
        "again."),
    row("", r"[Hh]ost key verification failed|host key is (?:known|not)", "", "stop",
        "A node's host key is unknown here: `ssh-keyscan NODE >> ~/.ssh/known_hosts` for each node, then launch_run "
        "again."),
    row("", r"ssh: Could not resolve hostname (\S{1,60}?):", "", "stop",
        "ssh knows no host {0}: correct the name, the hostfile or ~/.ssh/config, then launch_run again."),
    row("auth_error", r"publickey", r"pdsh|hostfile|mpirun|orted|(?i:deepspeed)", "stop",
        "A node refuses ssh: put this user's key on every node (ssh-copy-id), or use a launcher without ssh, then "
        "launch_run again."),
    row("auth_error", r"^(?!git@)(\S{1,40}@[\w.-]{1,60}): Permission denied \(", "", "stop",
        "{0} accepts no key of this host: add one there (ssh-copy-id {0}), or name it in ~/.ssh/config, then "
        "launch_run "
        "again.", unless=r"(?i)git@|github|gitlab|\bgit (?:clone|pull|fetch)"),
    row("port_conflict", r"bind \[[\d.:a-f]*\]:(\d+)|channel_setup_fwd", "", "retry_other_port",
        "The local end of an ssh tunnel, port {0}, is taken: launch_run again with another local port in -L, or end "
        "the "
        "old tunnel."),
    row("", r"rsync error: .{0,80}\(code (\d+)\)|rsync: connection unexpectedly closed", "", "retry_later",
        "rsync broke off: retry later with --partial, it goes on where it was; the far side's disk and login are "
        "worth a "
        "look."),
    # --- containers
    row("", r"bad superblock", r"(?i)squashfs|apptainer|singularity|\.sif", "stop",
        "The image cannot be mounted: it is cut off, or compressed as this kernel cannot read: copy or build it again "
        "(gzip), or --unsquash."),
    # --- Slurm
    row("", r"SLURM_MEM_PER_\w+.{0,80}mutually exclusive", "", "stop",
        "Two memory options clash: `unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE` before srun, or give "
        "just one."),
    row("killed", r"(?i)dependency", "", "stop",
        "The job it depends on failed: correct and run that one first (sacct shows it), then launch_run again."),
    row("config_error", r"(?i)invalid account", "", "stop",
        "Slurm does not know this account for that partition: correct --account and --partition (sacctmgr show assoc), "
        "then launch_run again."),
    row("config_error", r"(?i)QOS\w*Limit|AssocMax|AssocGrp|accounting/QOS policy|submit limit", "", "retry_later",
        "A limit of this account or QOS is reached: retry later, when other jobs have ended, or ask for less time or "
        "fewer GPUs."),
    row("config_error", r"(?:srun|sbatch|salloc): error: (?:Batch job submission failed: "
        r"|Unable to \w+ \w+: )?(.{5,120})",
        "", "stop", "Slurm says: {0}; correct that option (sinfo and sacctmgr show what is allowed)."),
    row("config_error", r"(?:srun|sbatch|salloc): error", "", "stop",
        "Slurm refuses the request: correct its partition, account, qos, gres or time (sinfo and sacctmgr show them)."),
    row("", r"credential expired|Task launch for .{0,40}failed|Application launch failed"
        r"|Communication connection failure|"
        r"Socket timed out on send/recv|Unable to contact slurm controller", "", "retry_later",
        "Slurm could not start the tasks on a node: retry later; if it recurs, exclude that node (--exclude) and "
        "report "
        "it."),
    row("", r"execve\(\):? ?(\S{1,120}?): No such file", "", "stop",
        "{0} does not exist on that node: activate or load the environment there (a path all nodes see), then "
        "launch_run "
        "again."),
    row("", r"couldn't chdir to `?'?([^:'`]{1,120})", "", "stop",
        "The node does not see {0}: start from a directory that all nodes share, then launch_run again."),
    # --- containers
    row("disk_full", r"docker|containerd|overlay2", "", "stop",
        "Docker's disk is full: free it (docker system prune) or move its data-root, then launch_run again."),
    row("", r"could not select device driver|unknown or invalid runtime name: nvidia", "", "stop",
        "Docker has no GPU runtime: install nvidia-container-toolkit, run `nvidia-ctk runtime configure "
        "--runtime=docker` and restart Docker."),
    row("", r"nvidia-container-cli: .{0,80}(?:driver/library version mismatch|nvml error)", "", "stop",
        "The host's driver was updated without a reboot (nvidia-smi fails too): ask for one, or use another host, then "
        "launch_run again."),
    row("", r"nvidia-container-cli: .{0,80}(?:unknown device|device error): ?(\S{1,60})", "", "stop",
        "The host has no GPU {0}: correct --gpus (nvidia-smi -L lists them), then launch_run again."),
    row("", r"nvidia-container-cli: .{0,40}requirement error.{0,60}(cuda ?[<>=]+ ?[\d.]+)", "", "stop",
        "The image wants {0}, the host's driver has less: use an image of an older CUDA, or a host with a newer "
        "driver."),
    row("", r"nvidia-container-cli", "", "stop",
        "The container got no GPU: nvidia-smi must work on the host, with nvidia-container-toolkit for its driver, "
        "then "
        "launch_run again."),
    row("", r"permission denied while trying to connect to the Docker daemon", "", "stop",
        "This user may not use Docker: join the docker group (or use podman or sudo), then launch_run again."),
    row("auth_error", r"pyxis|enroot", "", "stop",
        "The registry refused the image: put a token for it into ~/.config/enroot/.credentials on the nodes, or "
        "correct the image's name."),
    row("", r"[Mm]anifest (?:for (\S{1,80}) not found|unknown)"
        r"|Failed to pull image \"([^\"]{1,80})\".{0,200}not ?found", "",
        "stop", "The registry has no image {0}{1}: correct its name and tag, then launch_run again."),
    row("", r"pull access denied for ([^\s,]{1,80})|Failed to pull image \"([^\"]{1,80})\".{0,200}(?:denied"
        r"|unauthorized|"
        r"authoriz)", "", "stop",
        "No access to image {0}{1}: correct its name, or log in to its registry (docker login, imagePullSecrets), then "
        "launch_run again."),
    row("", r"Failed to pull image \"([^\"]{1,80})\"|(?:ErrImagePull|ImagePullBackOff)", "", "stop",
        "The image {0} cannot be pulled: correct its name or tag, or give access to its registry, then launch_run "
        "again."),
    row("port_conflict", r"Bind for \S*?:(\d{2,5}) failed|bind.{0,80}:(\d{2,5}).{0,60}(?:already|in use)", r"docker:",
        "retry_other_port",
        "Port {0}{1} is taken: launch_run again with another host port (-p NEW:OLD), or stop the container that has "
        "it."),
    row("", r"container name \"/?([\w.-]{1,60})\" is already in use", "", "stop",
        "A container {0} exists: docker rm -f {0} if it is done with, or use --rm and another --name, then launch_run "
        "again."),
    row("", r"Docker daemon|docker\.sock|docker\.errors\.DockerException|fetching server API version", "", "stop",
     "No Docker daemon answers: start it, or give the run access to docker.sock, then launch_run again."),
    row("", r"exec:? \"?([^\":]{1,80})\"?: (?:executable file not found|stat .{0,80}no such file)", "", "stop",
        "The image has no {0}: correct the command or its PATH in the image, then launch_run again."),
    row("", r"mount source:? ?(\S{1,120}?) (?:doesn't|does not) exist"
        r"|bind source path does not exist: (\S{1,120}?)\.?$", "",
        "stop", "{0}{1} does not exist on this host: correct the bind mount (-v, --bind), then launch_run again."),
    row("", r"could not open image (\S{1,120}?):", "", "stop",
        "There is no image {0}: correct its path or build it first, then launch_run again."),
    row("", r"ResourcesUnavailableError|Failed to provision all possible", "", "retry_later",
        "The cloud has no such machine free: retry later, or allow other regions, zones or GPU types."),
    # --- Kubernetes
    row("killed", r"ephemeral-storage", "", "retry_changed",
        "The pod wrote more than the node's ephemeral storage: write less there (a volume for checkpoints and caches), "
        "and resume."),
    row("", r"[Ii]nsufficient (nvidia\.com/gpu|cpu|memory|ephemeral-storage)", "", "retry_later",
        "No node has enough {0} free: retry later, or ask for less in resources.requests."),
    row("", r"had (?:untolerated )?taint|didn't match (?:Pod's )?node (?:affinity|selector)", "", "stop",
        "No node may take the pod: correct its nodeSelector, affinity or tolerations, then launch_run again."),
    row("", r"persistentvolumeclaim \"([^\"]{1,60})\" (?:not found|is being deleted)"
        r"|unbound immediate PersistentVolumeClaims",
        "", "stop", "The pod's volume claim {0} is not there: create or bind it first, then launch_run again."),
    row("", r"(?:configmap|secret) \"([^\"]{1,60})\" not found", "", "stop",
        "The pod needs {0}, which is not there: create it in this namespace, then launch_run again."),
    row("", r"forbidden: .{0,80}exceeded quota:? ?([^,\n]{1,60})", "", "stop",
        "The namespace's quota {0} is used up: end other pods or ask for less, then launch_run again."),
)
# fmt: on
