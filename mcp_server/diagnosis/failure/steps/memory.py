"""Next steps after failures of GPU memory and host memory."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

_VLLM, _SGLANG = r"\bvllm\b", r"\bsglang\b"
# First match wins: special before general.
# fmt: off
ROWS = (
    # --- vLLM and SGLang
    row("", r"[Ff]ree memory on device.{0,160}less than desired|less than desired GPU memory utilization", "",
     "retry_changed",
     "Others hold part of this GPU: lower vLLM's gpu_memory_utilization below what is free, or choose a free GPU."),
    row("", r"estimated maximum model length is (\d+)", "", "retry_changed",
        "No room for vLLM's KV cache: lower max_model_len to {0} or less, or use kv_cache_dtype=fp8 or a larger "
        "tensor_parallel_size."),
    row("", r"No available memory for the cache blocks", "", "retry_changed",
        "The weights leave no room for vLLM's KV cache: raise gpu_memory_utilization, or tensor_parallel_size (more "
        "GPUs); a smaller max_model_len comes last."),
    row("", r"larger than the (?:maximum number of tokens|available KV cache)"
     r"|KV cache is needed|decreas(?:e|ing) `?max_model_len", "", "retry_changed",
     "No room for vLLM's KV cache: lower max_model_len, raise gpu_memory_utilization if the GPU is otherwise free, or "
     "use more GPUs."),
    row("", r"[Nn]ot enough memory\. Please try to (?:in|de)crease --?-?mem|mem[-_]fraction[-_]static", "",
     "retry_changed",
     "SGLang has no room for weights and KV cache: change --mem-fraction-static as the line says (up to about 0.9), or "
     "raise --tp."),
    row("oom_gpu", "", r"reduce_bucket_size|allgather_bucket_size", "retry_changed",
        "A ZeRO bucket does not fit: lower zero_optimization.reduce_bucket_size and allgather_bucket_size, to 5e8 "
        "or less."),
    row("oom_gpu", "", r"exp_avg(?:_sq)?\b|optimi[sz]er\.step\(\)|in _init_group|_optimizer_step|in _multi_tensor_adam",
        "retry_changed", "The optimizer's state does not fit: use less of it (8-bit optimizer, LoRA), offload it "
        "(offload_optimizer), or "
        "shard it over more GPUs."),
    row("oom_gpu", "", r"(?i:sglang[^\n]{0,200}cuda_graph|--cuda-graph-max-bs)", "retry_changed",
        "No room to capture CUDA graphs: lower --mem-fraction-static (0.8) or --cuda-graph-max-bs."),
    row("oom_gpu", "", _SGLANG, "retry_changed",
     "SGLang ran out of GPU memory: lower --mem-fraction-static, or --chunked-prefill-size and "
     "--max-running-requests."),
    row("oom_gpu", "", r"\bverl\b|actor_rollout_ref|ppo_(?:micro|mini)|WorkerDict", "retry_changed",
     "Lower ppo_micro_batch_size_per_gpu (or ppo_max_token_len_per_gpu), or rollout.gpu_memory_utilization."),
    row("oom_gpu", "", r"OpenRLHF|openrlhf|LLMRayActor", "retry_changed",
     "Halve --micro_train_batch_size or --micro_rollout_batch_size, or lower --vllm_gpu_memory_utilization."),
    row("oom_gpu", "", _VLLM, "retry_changed",
     "vLLM ran out of GPU memory: lower gpu_memory_utilization, or max_model_len and max_num_seqs."),
    # --- GPU memory of others
    row("oom_gpu", r"\bTPU|\bhbm\b|\bHBM\b", "", "retry_changed",
     "TPU memory ran out: halve the per-device batch size, or shard or rematerialise more."),
    row("oom_gpu", r"PhysX|PxgCuda|Gym cuda|\[Error\] .*malloc", "", "retry_changed",
     "The simulation does not fit into GPU memory: halve num_envs."),
    row("oom_gpu", "", r"(?i:isaac ?(?:lab|gym|sim)|legged_gym|rsl_rl|rl_games|omni\.)", "retry_changed",
     "GPU memory ran out: halve num_envs; if it recurs, also the mini-batch of the algorithm."),
    row("oom_gpu", "", r"mujoco_playground|\bbrax\b|\bmjx\b", "retry_changed",
     "GPU memory ran out: halve num_envs or batch_size."),
    row("oom_gpu", "", "", "retry_changed",
        "The batch is 1 already: use less per sample (max_seq_length), LoRA or an 8-bit optimizer, or shard or "
        "offload (ZeRO-3, "
        "FSDP).", log=r"(?i)(?:train_batch_size|micro_batch_size\w*|(?<![\w-])batch[_-]size"
        r"|micro-batch-size)['\"]?[ :=]{1,3}1(?![\d.])"),
    row("oom_gpu", "", r"[Gg]rpo|GRPO", "retry_changed",
     "Lower per_device_train_batch_size or num_generations and max_completion_length; vllm_gpu_memory_utilization "
     "with vLLM."),
    row("oom_gpu", "", r"(?i:gpt-?neox)", "retry_changed",
        "Lower train_micro_batch_size_per_gpu, or set checkpoint_activations or a larger model_parallel_size."),
    row("oom_gpu", "", r"megatron", "retry_changed",
     "Lower --micro-batch-size, or turn on --recompute-activations or more tensor parallelism."),
    row("oom_gpu", "", r"llamafactory|transformers[/\\]trainer|trl[/\\]|axolotl|[Ss]entence.?[Tt]ransformer",
        "retry_changed",
        "Halve per_device_train_batch_size and double gradient_accumulation_steps, or lower the sequence length; "
        "LoRA saves "
        "more.", log=r"(?i)gradient[_-]checkpointing(?:['\"]?[ :=]{1,3}(?:true|1\b)|\s*$|\s+--)"),
    row("oom_gpu", "", r"trainer_pt_utils\.py.{0,40}in (?:nested_concat|torch_pad_and_concatenate|add)\b",
        "retry_changed",
        "Lower what the evaluation gathers on the GPU: eval_accumulation_steps=1, preprocess_logits_for_metrics "
        "(argmax), or prediction_loss_only=True."),
    row("oom_gpu", "", r"llamafactory|transformers[/\\]trainer|trl[/\\]|axolotl|[Ss]entence.?[Tt]ransformer",
     "retry_changed",
     "Halve per_device_train_batch_size and double gradient_accumulation_steps; gradient_checkpointing saves more."),
    row("oom_gpu", "", r"deepspeed", "retry_changed",
     "Halve train_micro_batch_size_per_gpu, or use a higher ZeRO stage or offload."),
    row("oom_gpu", "", r"torchtitan", "retry_changed",
     "Lower training.local_batch_size or seq_len, or set activation_checkpoint.mode=full."),
    row("oom_gpu", "", r"ultralytics", "retry_changed", "GPU memory ran out: lower batch= or imgsz=."),
    row("oom_gpu", "", r"lightning", "retry_changed",
     "Halve the data module's batch_size and double accumulate_grad_batches; precision=bf16-mixed saves more."),
    row("oom_gpu", "", r"diffusers", "retry_changed", "Lower --train_batch_size, or add --gradient_checkpointing."),
    row("oom_gpu", r"RESOURCE_EXHAUSTED|Jax|jax|XLA", "", "retry_changed",
     "GPU memory ran out: halve the batch size; where others use the GPU, XLA_PYTHON_CLIENT_PREALLOCATE=false."),
    row("oom_gpu", r"OOM when allocating|ResourceExhausted|BFCAllocator|_bfc\b", "", "retry_changed",
     "GPU memory ran out: halve batch_size; where others use the GPU, TF_FORCE_GPU_ALLOW_GROWTH=true in env."),
    row("oom_gpu", "", "", "retry_changed",
        "GPU memory ran out: lower num_envs or the mini-batch; gpu_check shows whether others use this GPU.",
        log=r"(?i:\bnum_envs\b|\bn_envs\b|gymnasium|\bgym\b|env_id|rollout|mujoco|\bppo\b|\bsac\b)"),
    row("oom_gpu", "", "", "retry_changed",
        "GPU memory ran out: halve the batch size (and double gradient accumulation); gpu_check shows whether "
        "others use "
        "this GPU."),
    # --- host memory
    row("oom_host", r"DataLoader worker", "", "retry_changed",
     "A DataLoader worker was killed, most likely for host memory: lower num_workers or prefetch_factor."),
    row("oom_host", r"slurmstepd|oom[-_ ]kill event|srun: error", "", "retry_changed",
     "The job's memory limit was reached: ask for more (--mem), or use fewer workers or environments."),
    row("oom_host", r"OOMKilled", "", "retry_changed",
     "The container's memory limit was reached: raise it, or use fewer workers or environments."),
    row("oom_host", r"[Uu]nable to allocate|_ArrayMemoryError|MemoryError", "", "retry_changed",
     "An array does not fit into host memory: load less at once (memory-mapped or in pieces), or use more memory."),
    row("oom_host", r"pinned memory", "", "retry_changed",
     "Pinned host memory ran out: halve num_envs, or use more memory."),
)
# fmt: on
