"""Next steps after failures that frameworks for training raise, from transformers to Megatron."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

_ANY = ""
# First match wins: special before general.
# fmt: off
ROWS = (
    # --- launchers
    row("config_error", r"unrecognized arguments: --local[-_]rank=?", "", "stop",
        "The launcher passes --local-rank, which the program does not know: start with torchrun and read "
        "LOCAL_RANK from the environment."),
    row("python_error other", r"ChildFailedError|^\S{1,60} FAILED$", "", "stop",
        "The log lacks rank {0}'s own error: start with --log-dir and --tee 3, or put @record (torch elastic) on main.",
        log=r"Root Cause[\s\S]{0,200}?rank +: (\d+)"),
    row("python_error other", r"ChildFailedError", "", "stop",
        "The log lacks the failed rank's own error: start with --log-dir and --tee 3, or put @record (torch "
        "elastic) on main."),
    row("cuda_error", r"invalid device ordinal", r"set_device|local_rank|LOCAL_RANK", "stop",
        "More processes than visible GPUs: lower nproc_per_node, or launch_run with more gpus= "
        "(CUDA_VISIBLE_DEVICES)."),
    row(_ANY, r"Default process group has not been initialized", "", "stop",
        "torch.distributed is used without init_process_group {at}: start with torchrun and call it first, or turn it "
        "off."),
    row("nccl_error", r"remote process exited|[Cc]onnection closed by remote peer|[Cc]onnection closed by peer|"
        r"[Cc]onnection reset by peer", "", "retry",
        "Another rank ended first: look for its own error above or on its node; without one, retry from the last "
        "checkpoint."),
    row("oom_gpu", r"NCCL|DistBackendError", "", "retry_changed",
        "NCCL found no GPU memory for its buffers: lower the batch size; gpu_check (and NCCL_DEBUG=INFO) show "
        "who holds it."),
    # --- data parallel
    row(_ANY, r"Expected to mark a variable ready only once", "", "stop",
        "Checkpointing and DDP clash: gradient_checkpointing_kwargs={{'use_reentrant': False}}, or "
        "ddp_find_unused_parameters=False {at}."),
    row(_ANY, r"Expected to have finished reduction", r"transformers|accelerate", "stop",
        "Some parameters got no gradient: ddp_find_unused_parameters=True in TrainingArguments (DDP: "
        "find_unused_parameters=True)."),
    row(_ANY, r"Expected to have finished reduction", r"lightning", "stop",
        "Some parameters got no gradient: strategy='ddp_find_unused_parameters_true' in the Trainer, then launch_run "
        "again."),
    row(_ANY, r"Expected to have finished reduction", "", "stop",
        "Some parameters got no gradient: find_unused_parameters=True in DistributedDataParallel, or let all outputs "
        "join the loss."),
    row("", r"Must flatten tensors with uniform dtype but got torch\.(?:float32 and torch\.(b?float16)"
        r"|(b?float16) and torch\.float32)", "", "stop",
        "FSDP shards one dtype: load all as {0}{1} (torch_dtype; cast LoRA and norms), for QLoRA with "
        "bnb_4bit_quant_storage={0}{1}."),
    row("", r"Must flatten tensors with uniform dtype but got torch\.(\w+) and torch\.(\w+)", "", "stop",
        "FSDP shards one dtype: cast the {1} parameters (LoRA, norms) to {0}; for QLoRA set bnb_4bit_quant_storage "
        "to it."),
    row(_ANY, r"uniform `?requires_grad`? when", "", "stop",
        "FSDP wraps frozen and trained parameters together: use_orig_params=True (fsdp_use_orig_params: true), then "
        "launch_run again."),
    row(_ANY, r"Could not find the transformer layer class (?:to wrap )?(\w+)|Could not find the transformer layer", "",
        "stop", "The model has no layer class {0}: set fsdp_transformer_layer_cls_to_wrap to one of this model's, or "
        "use SIZE_BASED_WRAP."),
    row("python_error", r"(?i)does not require grad",
        r"(?i:peft|lora|gradient.?checkpoint)|utils[/\\]checkpoint|None of the inputs have requires_grad", "stop",
        "No gradient passes the checkpoints: model.enable_input_require_grads(), or use_reentrant=False, "
        "before training {at}."),
    row(_ANY, r"no_sync context manager is incompatible with .{0,40}ZeRO stage (\d)", "", "stop",
        "This DeepSpeed forbids no_sync with ZeRO {0}: gradient_accumulation_steps=1, newer transformers and "
        "accelerate, or deepspeed==0.15.4."),
    row(_ANY, r"FP8 execution requires .{0,120}by (\d+).{0,80}dims=\[(\d+), ?(\d+)\]", "", "stop",
        "FP8 wants sizes of multiples of {0}, here {1} x {2}: pad (pad_to_multiple_of={0}), change that size, or bf16 "
        "for this layer."),
    row(_ANY, r"Image features and image tokens do not match", "", "stop",
        "Image tokens were cut off, or <image> tags and images differ: raise cutoff_len (max_length) or lower the "
        "images' pixels."),
    row(_ANY, r"Attempting to unscale FP16 gradients", "", "stop",
        "The trained weights are fp16: load them in float32 (torch_dtype) or train with bf16=True; fp16=True "
        "is only for float32 weights."),
    row(_ANY, r"unscale_\(\) has already been called|No inf checks were recorded", "", "stop",
        "GradScaler's order is wrong {at}: one scale(loss).backward(), unscale_, step, update for each "
        "optimizer step."),
    row("", r"Directory not empty: '[^'\n]{0,200}tmp-checkpoint[^'\n]{0,80}' -> '([^'\n]{1,200})'", "", "stop",
        "Ranks raced for this checkpoint, a defect of some transformers 4.x: upgrade it, delete {0}, and resume from "
        "the "
        "one before."),
    row(_ANY, r"Found dtype (\w+) but expected (\w+)|expected (?:m1 and m2|mat1 and mat2"
        r"|scalar type).{0,40}(?:but )?(?:got|found)", "", "stop",
        "Data types differ {at}: run it under torch.autocast, or cast the input to the model's dtype there, "
        "then launch_run again."),
    row(_ANY, r"FlashAttention only supports? fp16 and bf16|Flash ?Attention 2\.?0? only supports torch\.float16", "",
        "stop", "FlashAttention wants half precision: load with torch_dtype=torch.bfloat16 (or bf16 autocast) {at}, or "
        "sdpa."),
    row(_ANY, r"FlashAttention only supports Ampere", "", "stop",
        "This GPU is older than Ampere: set attn_implementation='sdpa' (or 'eager'), or use an A100-class GPU."),
    row(_ANY, r"Processor was not found", "", "stop",
        "LLaMA-Factory found no processor: choose a template for text alone, upgrade transformers, or fetch "
        "preprocessor_config.json."),
    row(_ANY, r"Undefined dataset (\S{1,60}) in (\S{1,100})", "", "stop",
        "{1} has no data set {0}: add its entry there (dataset_dir), or correct dataset= in the configuration."),
    row(_ANY, r"Failed to create dynamic compiled modules|Unsloth: .{0,80}patching", "", "stop",
        "Unsloth does not fit the other packages: pip install -U unsloth unsloth_zoo, and delete "
        "unsloth_compiled_cache."),
    row(_ANY, r"[Rr]oles must alternate", "", "stop",
        "This chat template wants user and assistant in turns: merge neighbours and drop or move the system "
        "message in the data {at}."),
    row(_ANY, r"Recomputed values .{0,80}different metadata|A different number of tensors was saved", "", "stop",
        "Checkpointing recomputes something else: use_reentrant=True (ZeRO-3 needs it), or nothing that "
        "changes between, {at}."),
    row(_ANY, r"compute capability (?:of )?(?:at least )?([\d.]+\d)|requires? .{0,40}(?:sm_|SM ?)(\d+)",
        r"(?i)fp8|transformer_engine|required|higher", "stop",
        "This GPU is too old for that (it needs capability {0}{1}): turn the feature off (FP8, fused kernels), "
        "or use a newer GPU."),
    # --- transformers
    row(_ANY, r"doesn't support bf16|bf16.{0,60}(?:requires?|not supported|can only be used)", "", "stop",
        "This GPU or build has no bf16: set fp16=true (or bf16=false), or launch_run where the GPU has it."),
    row(_ANY, r"Couldn't instantiate the backend tokenizer|need to have sentencepiece installed", "", "stop",
        "The tokenizer cannot be converted: pip install sentencepiece tiktoken protobuf in this environment, then "
        "launch_run again."),
    row(_ANY, r"No columns in the dataset match", "", "stop",
        "The model takes none of these columns: tokenize them into input_ids and labels, or "
        "remove_unused_columns=False with an own collator."),
    row(_ANY, r"trust_remote_code", "", "stop",
        "The model runs code of its repository: pass trust_remote_code=True {at} once that code is read, then "
        "launch_run again."),
    row(_ANY, r"model type `([\w-]+)` but Transformers does not recognize", "", "stop",
        "This transformers does not know {0}: pip install --upgrade transformers in this run's environment, then "
        "launch_run again."),
    row(_ANY, r"Tokenizer class (\w+) does not exist or is not currently imported", "", "stop",
        "This transformers has no {0}: upgrade transformers (or install sentencepiece), then launch_run again."),
    row(_ANY, r"llm_int8_enable_fp32_cpu_offload|Some modules are dispatched on the CPU", "", "stop",
        "The quantized model does not fit this GPU: use a free or larger one, or llm_int8_enable_fp32_cpu_offload=True "
        "with a device_map."),
    row(_ANY, r"purely quantized models", "", "stop",
        "Quantized weights cannot be trained: add LoRA adapters (get_peft_model) before the Trainer {at}, then "
        "launch_run again."),
    row(_ANY, r"(?:asking|attempting) to pad .{0,40}(?:no|not have a) pad|does not have a padding token", "", "stop",
        "The tokenizer has no padding token: set tokenizer.pad_token = tokenizer.eos_token, then launch_run again."),
    row(_ANY, r"(?m)Unable to create tensor, you should probably activate (?:truncation|padding)", "", "stop",
        "The samples have different lengths: padding=True and truncation=True, or DataCollatorForSeq2Seq for "
        "labels too {at}."),
    row(_ANY, r"did not return a loss from the inputs|model did not return a loss", "", "stop",
        "The batch has no labels: add a column `labels` (rename_column), or a collator that makes it, before the "
        "Trainer."),
    row(_ANY, r"(?:Token indices|Input) .{0,60}longer than|index out of range in self|max_position_embeddings",
        r"embedding|wpe|position", "stop",
        "A token id or position exceeds the embedding's size: compare its maximum with vocab_size, "
        "resize_token_embeddings, or truncate."),
    row(_ANY, r"IndexError: Target (\d+) is out of bounds", "", "stop",
        "Label {0} is not below the number of classes: raise num_classes (num_labels), or map labels to 0..n-1 {at}."),
    row("cuda_error", r"device-side assert|Assertion `", r"Loss\.cu|input_val >= zero|target_val >= zero", "stop",
        "A loss got a value outside 0..1 on the GPU: apply sigmoid first or use BCEWithLogitsLoss, and look "
        "for NaN {at}.", log=r"input_val >= zero|target_val >= zero"),
    row("cuda_error", r"device-side assert|Assertion `", "", "stop",
        "A label is negative or not below the number of classes: compare labels with num_classes (num_labels) {at}.",
        log=r"t >= 0 && t < n_classes|cur_target >= 0 && cur_target < n_classes"),
    row("cuda_error", r"device-side assert|Assertion `", "", "stop",
        "A token id or index exceeds its table: compare the maximal id with vocab_size (resize_token_embeddings) {at}.",
        log=r"srcIndex < srcSelectDimSize|index out of bounds|ind >= 0 && ind < |idx_dim >= 0"),
    row("cuda_error", r"device-side assert|Assertion `", "", "stop",
        "Sampling got probabilities that are NaN or negative: check the logits (bf16 instead of fp16) {at}.",
        log=r"probability tensor contains|cumdist\[|`val >= zero`|prob.{0,20}>= 0"),
    row(_ANY, r"Early stopping conditioned on metric `([\w/.-]+)` which is not available.{0,160}following: (.{1,120})",
        "", "stop",
        "EarlyStopping watches {0}, which is not logged: monitor one of {1}, or log it, then launch_run again."),
    row(_ANY, r"monitor='([^']{1,40})'\)`? could not find the monitored key in the returned metrics: \[([^\]]{1,120})",
        "", "stop",
        "{0} is not logged: set monitor to one of {1}, or self.log('{0}', ...) in validation, then launch_run "
        "again."),
    row(_ANY, r"metric_for_best_model\W.{0,60}'([\w/.-]{1,60})', which is not found.{0,80}?: \[([^\]]{1,80}?)(?:, "
        r"'eval_runtime'[^\]]*)?\]", "", "stop",
        "The evaluation gives {1}, not {0}: set metric_for_best_model to one of them, then launch_run again."),
    row(_ANY, r"KeyError: '(eval_\w+)'",
        r"_determine_best_metric|_save_checkpoint|metric_for_best_model", "stop",
        "The evaluation gives no {0}: set metric_for_best_model to a key that compute_metrics returns, then "
        "launch_run again."),
    row(_ANY, r"No supported gpu backend found", "", "stop",
        "Lightning sees no GPU: launch_run with gpus=, check CUDA_VISIBLE_DEVICES and that torch has CUDA."),
    row(_ANY, r"no such layer|No `(\w+)\(\)` method defined|`(\w+_step)\(\)` method", r"lightning", "stop",
        "The LightningModule lacks {0}{1}: define it, then launch_run again."),
    row(_ANY, r"Unrecognized configuration class .{0,160}?\.(\w+)Config'> for this kind of AutoModel: (\w+)", "",
        "stop", "{0} is not a model of {1}: use the AutoModel class of its task (Seq2SeqLM, ImageTextToText …) {at}."),
    row(_ANY, r"Unrecognized model in (\S{1,160}?)\. Should have a `model_type` key", "", "stop",
        "{0} has no transformers config.json (an adapter, or another format): name the model's own directory {at}."),
    row(_ANY, r"device_map='auto'.{0,40}distributed mode", "", "stop",
        "device_map='auto' does not go with several processes: drop it under torchrun or accelerate {at}, or "
        "use one process."),
    row(_ANY, r"Trainer: training requires a train_dataset|training requires a train_dataset", "", "stop",
        "The Trainer got no training data: pass train_dataset (or --train_file, --dataset_name) {at}, then "
        "launch_run again."),
    row(_ANY, r"eval_?\w*strategy.{0,80}didn't pass an `?eval_dataset", "", "stop",
        "Evaluation is on without data: pass eval_dataset, or set eval_strategy='no', {at}, then launch_run again."),
    row(_ANY, r"(?i)fp16.{0,200}(?:can only be used on|requires a) (?:CUDA|GPU)|fp16 mixed precision requires", "",
        "stop", "fp16 needs a GPU, and none is seen: launch_run with gpus=, or set fp16=false (mixed_precision=no)."),
    row(_ANY, r"Some tensors share memory", "", "stop",
        "The model ties weights: save_safetensors=False (safe_serialization=False), or "
        "safetensors.torch.save_model {at}."),
    row(_ANY, r"should supply an encoding or a list of encodings .{0,60}includes input_ids", "", "stop",
        "The collator gets no input_ids: tokenize the data with map first, and keep those columns {at}."),
    row(_ANY, r"does not support (?:an attention implementation|Flash Attention 2|.{0,60}scaled_dot_product_attention)",
        "", "stop", "This model has no such attention: attn_implementation='eager' in from_pretrained {at}, then "
        "launch_run again."),
    row(_ANY, r"\b(\w{1,80})Config\.__init__\(\) got an unexpected keyword argument '(\w+)'",
        r"peft|adapter_config", "stop",
        "The adapter was saved by a newer PEFT (it has {1}): pip install -U peft, then launch_run again."),
    row(_ANY, r"Unable to load weights from pytorch checkpoint file", "", "stop",
        "The weights file is cut or a git-LFS pointer: fetch it again (hf download, `git lfs pull`), then "
        "launch_run again."),
    row(_ANY, r"do_sample` is set to `False`. However, `(\w+)` is set", "", "stop",
        "The generation config is inconsistent: set do_sample=True or unset {0} (generation_config) before "
        "saving {at}."),
    row(_ANY, r"(?m)generation config instance is invalid[\s\S]{0,400}`(\w+)` is set to", "", "stop",
        "The generation config is inconsistent: set generation_config.do_sample=True, or unset {0}, before "
        "saving {at}."),
    row(_ANY, r"'BitsAndBytesConfig' object has no attribute '(\w+)'"
        r"|'(?:\w+Config)' object has no attribute 'get_loading_attributes'", "", "stop",
        "transformers and its quantization config are of different versions: pip install -U transformers "
        "accelerate bitsandbytes."),
    row(_ANY, r"Can't load qlora if (\w+)|Require cfg\.load_in_(\w+) to be True", "", "stop",
        "axolotl's settings contradict each other: qlora needs load_in_4bit: true, and gptq and load_in_8bit false."),
    row(_ANY, r"AcceleratorState.{0,60}(?:has no attribute|not been)", "", "stop",
        "Accelerator() must be created before this {at}: make it first in main(), then launch_run again."),
    # --- DeepSpeed
    row(_ANY, r"(?m)correct the following DeepSpeed config values that mismatch", "", "stop",
        "{0}: set such values to \"auto\" in the DeepSpeed JSON, or make both equal, then launch_run again.",
        log=r"(?m)^\W{0,3}(ds \S{1,60}=\S{1,20} vs hf \S{1,60}=\S{1,20})"),
    row(_ANY, r"not compatible with `?low_cpu_mem_usage=True`? or with passing a `?device_map", "", "stop",
        "ZeRO-3 places the model itself: remove device_map and low_cpu_mem_usage from from_pretrained {at}, then "
        "launch_run again."),
    row(_ANY, r"'DeepSpeedCPUAdam' object has no attribute", "", "stop",
        "DeepSpeed's CPU Adam was not compiled (the error above says why): fit nvcc and gcc, or "
        "offload_optimizer without it."),
    row(_ANY, r"weight should have at least \d dim|'weight' must be 2-D|size mismatch, got .{0,80}torch\.Size\(\[0\]\)"
        r"|shape torch\.Size\(\[0\]\)", r"(?i)deepspeed|zero|embedding|load_state_dict", "stop",
        "ZeRO-3 has the weights in pieces: gather them (deepspeed.zero.GatheredParameters) {at}, or use ZeRO-2 "
        "there."),
    row(_ANY, r"still have inflight params|param .{0,60}already in registry|ds_status", "", "stop",
        "ZeRO-3 lost count of its parameters: call the whole model in one order on each rank {at}, or use ZeRO-2."),
    row(_ANY, r"No module named 'deepspeed\.ops\.\w+|deepspeed.{0,60}op builder|CUDA Toolkit and PyTorch", "", "stop",
        "DeepSpeed cannot build this op: set CUDA_HOME to torch's CUDA toolkit (`ds_report` shows what fits), then "
        "launch_run again."),
    row(_ANY, r"ds_summary|'status': 'NOT_AVAILABLE'|ZeroParamStatus", "", "stop",
        "A module was used outside the order that ZeRO-3 gathers: run it through the whole model (or "
        "set_z3_leaf_modules), or use ZeRO-2."),
    row(_ANY, r"No slot '(\d+)' specified on host '([^']{1,40})'", "", "stop",
        "Host {1} has no GPU {0} for DeepSpeed: correct --include or --num_gpus to the visible GPUs, then "
        "launch_run again."),
    row(_ANY, r"must provide optimizer during init", "", "stop",
        "DeepSpeed has no optimizer: pass optimizer= to deepspeed.initialize, or an optimizer section in its "
        "JSON {at}."),
    row(_ANY, r"params_in_ipg_bucket|gradient computed twice for this partition|has already been reduced", "", "stop",
        "Reentrant checkpointing clashes with ZeRO: gradient_checkpointing_kwargs={{'use_reentrant': False}}, "
        "then launch_run again."),
    row(_ANY, r"libaio|async_io", r"(?i)deepspeed|nvme", "stop",
        "Offload to NVMe needs libaio: install libaio-dev and build async_io again (`ds_report`), then "
        "launch_run again."),
    # --- Megatron
    row("python_error config_error", r"AssertionError$",
        r"(?m)^\s*(?:\[[^\]\n]{1,20}\]:? ?)?assert args\.(\w+) is not None", "stop",
        "The argument {0} is missing: give it on the command line, then launch_run again.",
        log=r"assert args\.(\w+) is not None"),
    row("python_error config_error", r"world[_ ]size \(?(\d+)\)? (?:is not|must be) divisible by (?:\w+ )?\(?(\d+)", "",
        "stop", "{0} GPUs do not hold whole model copies of {1} (tensor x pipeline x context parallel): lower those "
        "sizes or change the GPUs."),
    row("python_error config_error", r"(?:AssertionError|ValueError): (\d+) is not divisible by (\d+)", "", "stop",
        "{0} is not divisible by {1} {at}: choose a parallel size (tensor-model-parallel-size) that divides it, then "
        "launch_run again."),
    row(_ANY, r"KeyError: '(iteration|total_iters|checkpoint_version|args)'|Unable to load checkpoint",
        r"load_checkpoint|megatron", "stop",
        "The checkpoint holds no {0}, so it is not Megatron's: give --load the directory with "
        "latest_checkpointed_iteration.txt."),
    row(_ANY, r"CUDA_DEVICE_MAX_CONNECTIONS", "", "stop",
        "Set CUDA_DEVICE_MAX_CONNECTIONS=1 in launch_run's env for this parallelism, then launch_run again."),
    row(_ANY, r"No module named '?(?:helpers(?:_cpp)?|megatron\.core\.datasets\.helpers\w*)", "", "stop",
        "Megatron's data helpers are not compiled: run `make` in megatron/core/datasets, then launch_run again."),
    # --- PyTorch
    row(_ANY, r"recompile_limit|cache_size_limit", "", "stop",
        "torch.compile recompiles too often: raise torch._dynamo.config.recompile_limit, or compile with dynamic=True "
        "(fullgraph=False)."),
    row(_ANY, r"(?m)BackendCompilerFailed|InductorError", r"Python\.h", "stop",
        "The compiler lacks Python.h: install python3-dev (or use conda's Python), or turn torch.compile off, then "
        "launch_run again."),
    row(_ANY, r"backward through the graph a second time", "", "stop",
        "A graph is used twice {at}: detach() what is kept between steps, or sum the losses for one backward."),
    row(_ANY, r"DataLoader worker .{0,40}exited unexpectedly", "", "stop",
        "A DataLoader worker died: num_workers=0 shows its error; without one it was memory, so use fewer workers."),
    row(_ANY, r"Input type \((?:torch\.)?(\S+?)\) and weight type \((?:torch\.)?(\S+?)\) should be the same", "",
        "stop", "The input is {0}, the weights are {1}: move both to one device and dtype (.to(...)) {at}, then "
        "launch_run again."),
    row(_ANY, r"Expected all tensors to be on the same device.{0,60}(cuda:\d+|cpu) and (cuda:\d+|cpu)", "", "stop",
        "Tensors are on {0} and {1}: move the input to the model's device {at} (model.device), then launch_run again."),
    row(_ANY, r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)", "", "stop",
        "A Linear layer takes {2} features and gets {1}: set in_features to {1}, or flatten the input right, {at}."),
    row(_ANY, r"Expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)", "", "stop",
        "The loss got {0} predictions for {1} targets: flatten both the same way (view(-1, C) and view(-1)) {at}."),
    row(_ANY, r"expected input\[([\d, ]+)\] to have (\d+) channels, but got (\d+)", "", "stop",
        "The layer takes {1} channels and the input has {2}: convert the images or set in_channels={2} {at}."),
    row(_ANY, r"Expected more than 1 value per channel when training", "", "stop",
        "BatchNorm got a batch of one: drop_last=True in the DataLoader, or a larger batch, {at}."),
    row(_ANY, r"element \d of tensors does not require grad", "", "stop",
        "The loss {at} depends on no trainable parameter: unfreeze some, or drop a no_grad or detach, then launch_run "
        "again."),
    row(_ANY, r"'(?:<=?|>=?)' not supported between instances of '(float|int)' and 'str'|(?:unsupported operand"
        r"|can't multiply).{0,60}'str'", r"yaml|cfg|config|args\.", "stop",
        "A number of the configuration is text (YAML reads 1e-4 as text): write 1.0e-4, or float(...) {at}."),
    row(_ANY, r"Legacy autograd function with non-static forward", "", "stop",
        "The extension is for an old PyTorch: make forward and backward static methods, or update that package."),
    row(_ANY, r"(?:Cannot|Can't) call numpy\(\) on Tensor that requires grad", "", "stop",
        "A tensor with a gradient goes to NumPy: write .detach().cpu().numpy() {at}, then launch_run again."),
    row(_ANY, r"can't convert cuda:?\d* device type tensor to numpy", "", "stop",
        "A GPU tensor goes to NumPy: write .cpu().numpy() {at}, then launch_run again."),
    row(_ANY, r"view size is not compatible with input tensor's size and stride", "", "stop",
        "The tensor is not contiguous: use .reshape(...) or .contiguous() before view {at}, then launch_run again."),
)
# fmt: on
