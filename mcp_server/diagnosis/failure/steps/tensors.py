"""Next steps after PyTorch's own errors: shapes, types, devices, gradients, schedules, processes of its loaders."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

_ANY = ""
# First match wins: special before general.
# fmt: off
ROWS = (
    # --- devices
    row(_ANY, r"Error 802|system not yet initialized", "", "stop",
        "The GPUs' NVLink switches are not ready: nvidia-fabricmanager of the driver's version must run on "
        "this host (an admin's task); else use another host."),
    row(_ANY, r"Error 803|unsupported display driver / cuda driver combination", "", "stop",
        "The CUDA library found is not the driver's own: take cuda/compat and stubs out of LD_LIBRARY_PATH, or "
        "use another host."),
    row(_ANY, r"Error 804|forward compatibility was attempted", "", "stop",
        "The container's cuda-compat does not suit this GPU and driver: take cuda/compat out of "
        "LD_LIBRARY_PATH, or use an image for the driver's CUDA."),
    row(_ANY, r"Driver/library version mismatch", "", "stop",
        "The host's driver was updated without a restart: it needs a reboot (an admin's task); launch_run on "
        "another host until then."),
    row(_ANY, r"Torch not compiled with CUDA enabled", "", "stop",
        "This torch is a CPU build: reinstall it with CUDA (pip install torch --index-url "
        "https://download.pytorch.org/whl/cu124)."),
    row(_ANY, r"CUDA device (\d+) but torch\.cuda\.device_count\(\) is (\d+)", "", "stop",
        "The file was saved on GPU {0}, and {1} are visible: pass map_location='cuda:0' (or 'cpu') to "
        "torch.load {at}."),
    row(_ANY, r"Expected one of cpu, cuda.{0,400}device type at start of device string: (\w+)", "", "stop",
        "{0} is not a device of PyTorch: write cuda, cuda:0 or cpu {at}, then launch_run again."),
    row(_ANY, r"CUBLAS_STATUS_INVALID_VALUE", "", "stop",
        "Mostly another cuBLAS comes before torch's own: unset LD_LIBRARY_PATH; else a tensor's dtype or "
        "shape is wrong {at}."),
    row(_ANY, r"CUBLAS_STATUS_NOT_SUPPORTED", "", "stop",
        "This GPU has no such product of matrices, mostly bf16: use fp16 or float32, or a newer GPU, then "
        "launch_run again."),
    row(_ANY, r"CUDA error: initialization error|Cannot re-initialize CUDA in forked",
        r"multiprocessing|DataLoader|fork|[Pp]rocess", "stop",
        "CUDA was used before a fork: keep CUDA out of the Dataset, or use multiprocessing_context='spawn' (or "
        "num_workers=0)."),
    row(_ANY, r"operation (?:not permitted when|would make the legacy) stream is? ?(?:capturing|depend)"
        r"|overwritten by a subsequent run", "", "stop",
        "CUDA graphs do not fit this code: torch.compile(mode='default'), or cudagraph_mark_step_begin() and "
        "clone() {at}."),
    row(_ANY, r"device kernel image is invalid", "", "stop",
        "A cached kernel is of another GPU or driver: delete ~/.triton/cache and /tmp/torchinductor_*, then "
        "launch_run again."),
    row(_ANY, r"(?:module must have its parameters and buffers on device"
        r"|only work with single-device.{0,200}module parameters \{device\(type='cpu'\)\})", "", "stop",
        "The model is still on the CPU: model.to(device) of this rank before DataParallel or DDP {at}, then "
        "launch_run again."),
    row(_ANY, r"not needed when a module doesn't have any parameters that require a gradient", "", "stop",
        "DDP got a model with nothing to train: unfreeze parameters first, or do not wrap it {at}, then "
        "launch_run again."),
    row(_ANY, r"No backend type associated with device type cpu", r"(?i)\bfsdp|offload|clip_grad_norm_", "stop",
        "FSDP's CPU offload needs a CPU backend: turn offload_params off, upgrade accelerate, or "
        "init_process_group('cpu:gloo,cuda:nccl')."),
    row(_ANY, r"No backend type associated with device type cpu|Tensors must be CUDA and dense", "", "stop",
        "A CPU tensor goes into an NCCL collective: move it to the GPU {at}, or "
        "init_process_group('cpu:gloo,cuda:nccl')."),
    row(_ANY, r"Tensors must be contiguous|input must be contiguous", "", "stop",
        "A collective needs contiguous tensors: call .contiguous() on what is passed {at}, then launch_run again."),
    row(_ANY, r"got mixed torch\.Tensor and DTensor", "", "stop",
        "A plain tensor meets a sharded one (DTensor) {at}: apply fully_shard or the parallel plan to the "
        "whole model, or distribute_tensor it."),
    row(_ANY, r"store->get\('\d+'\).{0,40}(?:got error: )?|ncclUniqueId from \[0\]", "", "retry",
        "Rank 0 ended or never came: look for its own error above or on its node; without one, retry from the "
        "last checkpoint."),
    row(_ANY, r"[Rr]anks? ([\d, ]{1,40}) (?:failed to pass|did not (?:reach|call)) monitoredBarrier", "", "retry",
        "Rank {0} did not come to the barrier: look for its own error above; without one, retry from the last "
        "checkpoint."),
    row(_ANY, r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK) expected, but not set", "",
        "stop", "{0} is not set, which a launcher does: start with torchrun (or accelerate launch), then launch_run "
        "again."),
    row(_ANY, r"[Cc]annot copy out of meta tensor|is not on the expected device meta"
        r"|is on the meta device, we need a `value`", "", "stop",
        "Some weights were never loaded (meta): remove device_map and low_cpu_mem_usage {at}, or use "
        "to_empty() and load them."),
    row("python_error", r"AssertionError\W*$", r"assert outputs\.is_cuda", "stop",
        "GradScaler got a loss on the CPU {at}: the run sees no GPU (launch_run with gpus=), or "
        "GradScaler(enabled=False)."),
    # --- types
    row(_ANY, r"\"(\w+)\" not implemented for '(Half|BFloat16|Float8\w*)'", "", "stop",
        "{1} has no {0} on this device, mostly the CPU: move the model to the GPU, or use float32 {at}, then "
        "launch_run again."),
    row(_ANY, r"\"(\w+)\" not implemented for '(Long|Int|Byte|Bool|Short|Char)'", "", "stop",
        "{0} wants floating point and gets {1}: call .float() on it {at} (or .long() on labels), then "
        "launch_run again."),
    row(_ANY, r"Only Tensors of floating point (?:and complex )?dtype can require gradients", "", "stop",
        "Integer (quantized) weights cannot be trained: add LoRA adapters, or cast them to float {at}, then "
        "launch_run again."),
    row(_ANY, r"can't convert np\.ndarray of type numpy\.object_", "", "stop",
        "The array holds objects (strings, None, rows of different lengths): make it numeric "
        "(astype('float32')) {at}."),
    row(_ANY, r"inhomogeneous shape|setting an array element with a sequence", "", "stop",
        "The rows have different lengths {at}: pad them, or keep a list (dtype=object), then launch_run again."),
    row(_ANY, r"expected sequence of length (\d+) at dim \d+ \(got (\d+)\)", "", "stop",
        "Samples of {0} and {1} in one batch: padding=True and truncation=True, or a collator that pads {at}."),
    row(_ANY, r"default_collate: batch must contain .{0,120}found <class '([\w.]+)'", "", "stop",
        "The Dataset returns a {0}: give tensors (ToTensor(), no None), or pass a collate_fn, then launch_run again."),
    row(_ANY, r"[Tt]rying to resize storage that is not resizable|stack expects each tensor to be equal size", "",
        "stop",
        "The samples of a batch have different shapes: resize or pad them in the Dataset, or pass a collate_fn."),
    # --- shapes
    row(_ANY, r"Sizes of tensors must match except in dimension (\d+)\. (?:Expected size (\d+) but got size (\d+)"
        r"|Got (\d+) and (\d+))", "", "stop",
        "cat() got sizes {1}{3} and {2}{4} {at}: where a U-Net halves unevenly, resize or pad the input to a "
        "multiple of 32."),
    row(_ANY, r"Kernel size can't be greater than actual input size|[Oo]utput size is too small", "", "stop",
        "The input is too small for this depth {at}: larger images (or sequences), or fewer downsampling layers."),
    row(_ANY, r"shape '(\[[^\]]{1,60}\])' is invalid for input of size (\d+)", "", "stop",
        "{1} elements do not make {0} {at}: often the last, smaller batch (drop_last=True) or another input size."),
    row(_ANY, r"Shape mismatch, can't divide axis of length (\d+) in chunks of (\d+)", "", "stop",
        "{0} is not divisible by {1} {at}: resize the input, or choose a patch size that divides it, then "
        "launch_run again."),
    row(_ANY, r"(?m)can't divide axis of length (\d+) in chunks of (\d+)", "", "stop",
        "{0} is not divisible by {1} {at}: resize the input, or choose a patch size that divides it, then "
        "launch_run again."),
    row(_ANY, r"Shapes \(None, 1\) and \(None, (\d+)\) are incompatible", r"(?<!sparse_)categorical_crossentropy",
        "stop",
        "The labels are class numbers, the loss wants one-hot: loss='sparse_categorical_crossentropy', or "
        "to_categorical(y, {0})."),
    row(_ANY, r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\) at non-singleton dimension (\d+)",
        "", "stop", "Dimension {2} is {0} and {1} {at}: make both equal (padding, truncation, the model's size), then "
        "launch_run again."),
    row(_ANY,
        r"embed_dim must be divisible by num_heads|hidden size \((\d+)\) is not a multiple of the number of attent"
        r"ion heads \((\d+)\)", "", "stop",
        "The hidden size must be a multiple of the number of heads: change one of them in the model's "
        "configuration {at}."),
    # --- gradients and optimizers
    row(_ANY, r"grad can be implicitly created only for scalar", "", "stop",
        "The loss has several values {at}: take loss.mean() (or sum) before backward(), then launch_run again."),
    row(_ANY, r"leaf Variable that requires grad .{0,40}in-place", "", "stop",
        "A parameter is changed in place {at}: do it under torch.no_grad(), or on a clone(), then launch_run again."),
    row(_ANY, r"optimizer got an empty parameter list", "", "stop",
        "The optimizer got nothing to train {at}: unfreeze parameters, or pass model.parameters() anew (a "
        "generator is used up)."),
    row(_ANY, r"can't optimize a non-leaf Tensor", "", "stop",
        "The optimizer got a computed tensor {at}: make it an nn.Parameter, on its device, before the "
        "optimizer is built."),
    row(_ANY, r"some parameters appear in more than one parameter group", "", "stop",
        "A parameter is in two groups {at} (tied weights?): give each once, then launch_run again."),
    row(_ANY, r"param 'initial_lr' is not specified", "", "stop",
        "last_epoch needs a loaded optimizer: load its state first, or keep last_epoch=-1 and load the "
        "scheduler's state {at}."),
    row(_ANY, r"Tried to step (\d+) times\. The specified number of total steps is (\d+)", "", "stop",
        "The schedule ends at step {1}: raise total_steps (epochs x steps_per_epoch), or step it less often, {at}."),
    row(_ANY, r"CUBLAS_WORKSPACE_CONFIG", "", "stop",
        "Deterministic mode needs CUBLAS_WORKSPACE_CONFIG=:4096:8 in launch_run's env, or "
        "use_deterministic_algorithms(False)."),
    row(_ANY, r"\b(\w{1,80}) does not have a deterministic implementation", "", "stop",
        "{0} is never deterministic: torch.use_deterministic_algorithms(True, warn_only=True), then launch_run again."),
    row(_ANY, r"backward pass is invalid for module in evaluation mode", "", "stop",
        "The model is in eval mode at backward: call model.train() before each training step (after evaluation "
        "or generation)."),
    # --- processes of loaders
    row(_ANY, r"h5py objects cannot be pickled", "", "stop",
        "An open HDF5 file cannot be sent to a worker process: open it in the worker (first __getitem__), or "
        "num_workers=0."),
    row(_ANY, r"cannot pickle '([\w. ]{1,60})' object", "", "stop",
        "A {0} cannot be sent to a worker process: make it inside the worker (first __getitem__), or num_workers=0."),
    row(_ANY, r"One of the subprocesses has abruptly died during map", "", "retry_changed",
        "A process of datasets.map died, mostly for memory: lower num_proc and batch_size; num_proc=1 shows an "
        "error of the function."),
    row(_ANY, r"DataLoader worker .{0,40}killed by signal: Segmentation", "", "retry_changed",
        "Native code crashed in a loader's worker: fewer workers or num_workers=0 show where; "
        "cv2.setNumThreads(0) often helps."),
    row(_ANY, r"Pin memory thread exited", "", "retry_changed",
        "The loader's pinning thread died, mostly for memory: fewer workers, or pin_memory=False; its own "
        "error may be above."),
)
# fmt: on
