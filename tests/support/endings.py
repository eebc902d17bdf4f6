# ruff: noqa: E501 - logs are as wide as they are
r"""How failed runs end, in the words of launchers, schedulers, shells and native libraries: own short fixtures.

Each is a kind and a log; the line that proves it begins with `» `. Written `\r` ends a line of a progress bar.
"""

TRACE = """Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    main()
  File "/home/me/train.py", line 5, in main
    step(batch)
"""
RANK = "\n".join("[rank{0}]: " + line for line in TRACE.strip("\n").splitlines()) + "\n[rank{0}]: "
FAILED = RANK.removesuffix("[rank{0}]: ") + "» [rank{0}]: "

ENDINGS: tuple[tuple[str, str], ...] = (
    # --- bash, kernel, Slurm, PBS, LSF, Kubernetes -------------------------------------------------------------------
    ("killed", "Epoch 1 loss 0.4\n» Killed"),
    ("killed", "Epoch 1 loss 0.4\n» run.sh: line 12: 48211 Killed                  python train.py --lr 1e-3"),
    ("killed", "» /var/spool/slurmd/job8812/slurm_script: line 31: 20113 Terminated              python train.py"),
    ("segfault", "step 3\n» Segmentation fault (core dumped)"),
    ("segfault", "» ./run.sh: line 4:  7781 Segmentation fault      (core dumped) python train.py"),
    ("segfault", "» train.sh: line 7: 1189 Bus error               (core dumped) python train.py"),
    ("segfault", "» run.sh: line 2: 991 Aborted                 (core dumped) python train.py"),
    ("segfault", "» run.sh: line 2: 991 Illegal instruction     (core dumped) python train.py"),
    ("segfault", "» run.sh: line 2: 991 Floating point exception(core dumped) python sim.py"),
    ("oom_host", "step 1\nKilled\n» slurmstepd: error: Detected 1 oom_kill event in StepId=771.0. Some of the step tasks have been OOM Killed."),
    ("oom_host", "» slurmstepd: error: Detected 3 oom-kill event(s) in step 9911.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler."),
    ("oom_host", "» srun: error: gpu07: task 0: Out Of Memory\nsrun: launch/slurm: _step_signal: Terminating StepId=71.0"),
    ("oom_host", "» slurmstepd: error: Exceeded job memory limit at some point."),
    ("oom_host", "» [1234.5] Out of memory: Killed process 4412 (python) total-vm:90123kB, anon-rss:61234kB"),
    ("oom_host", "» Memory cgroup out of memory: Killed process 99 (python3) total-vm:1kB"),
    ("oom_host", "» =>> PBS: job killed: mem 67108864kb exceeded limit 62914560kb"),
    ("oom_host", "Last State: Terminated\n»   Reason: OOMKilled\n  Exit Code: 137"),
    ("oom_host", "» TERM_MEMLIMIT: job killed after reaching LSF memory usage limit."),
    ("oom_host", "» terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\nAborted (core dumped)"),
    ("oom_host", "» (raylet) bash: fork: Cannot allocate memory"),
    ("killed", "» slurmstepd: error: *** JOB 77 ON n01 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***"),
    ("killed", "step 9\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n» slurmstepd: error: *** STEP 77.0 ON n01 CANCELLED AT 2025-01-01T00:00:00 DUE TO PREEMPTION ***\nsrun: error: n01: task 0: Terminated"),
    ("killed", "» slurmstepd: error: *** JOB 77 ON n01 CANCELLED AT 2025-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"),
    ("killed", " 41%|####      | 41/100 [00:10<00:14,  4.0it/s]\r» 42%|####      | 42/100 [00:10<00:14,  4.0it/s]slurmstepd: error: *** JOB 5 ON g1 CANCELLED AT 2025-01-01T00:00:00 ***"),
    ("killed", "» =>> PBS: job killed: walltime 3603 exceeded limit 3600"),
    ("killed", "» TERM_RUNLIMIT: job killed after reaching LSF run time limit."),
    ("killed", "» Status: Evicted"),
    # --- a person, a signal ------------------------------------------------------------------------------------------
    ("killed", " 12%|#   | 12/100 [00:01<00:09, 9.0it/s]^C" + TRACE + "» KeyboardInterrupt"),
    ("killed", "» /opt/lib/python3.11/site-packages/pytorch_lightning/trainer/call.py:54: Detected KeyboardInterrupt, attempting graceful shutdown..."),
    ("killed", "-----\n» Exiting from training early"),
    ("killed", "W0308 Received 15 death signal, shutting down workers\nSending process 7 closing signal SIGTERM\n" + TRACE + "» torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15"),
    ("killed", "[2025-01-01 00:00:00,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 3\n» [2025-01-01 00:00:00,000] [INFO] [launch.py:328:sigkill_handler] Main process received SIGTERM, exiting"),
    ("killed", "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 11) of binary: /usr/bin/python\n" + TRACE + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrain.py FAILED\nRoot Cause (first observed failure):\n[0]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : -9 (pid: 11)\n  error_file: <N/A>\n»   traceback : Signal 9 (SIGKILL) received by PID 11\n===="),
    ("killed", "[2025-01-01 00:00:00,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 3\n» [2025-01-01 00:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', 'train.py'] exits with return code = -9"),
    ("segfault", "[2025-01-01 00:00:00,000] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 3\n» [2025-01-01 00:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', 'train.py'] exits with return code = -11"),
    ("segfault", "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -11) local_rank: 1 (pid: 12) of binary: /usr/bin/python\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nRoot Cause (first observed failure):\n  rank      : 1 (local_rank: 1)\n  exitcode  : -11 (pid: 12)\n»   traceback : Signal 11 (SIGSEGV) received by PID 12"),
    # --- native crashes ----------------------------------------------------------------------------------------------
    ("segfault", "epoch 3 loss 2.1\n» Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  File \"/opt/torch/nn/functional.py\", line 12 in conv2d\n  File \"train.py\", line 7 in <module>\n\nExtension modules: numpy.core._multiarray_umath, torch._C (total: 2)\nSegmentation fault (core dumped)"),
    ("segfault", "[n01:7781] *** Process received signal ***\n» [n01:7781] Signal: Segmentation fault (11)\n[n01:7781] Signal code: Address not mapped (1)\n[n01:7781] *** End of error message ***"),
    ("segfault", "» !!!!!!! Segfault encountered !!!!!!!\n  File \"./nptl/pthread_kill.c\", line 44, in __GI___pthread_kill"),
    ("segfault", "» double free or corruption (!prev)\nAborted (core dumped)"),
    ("segfault", "» malloc(): invalid size (unsorted)"),
    ("segfault", "» free(): invalid pointer\nAborted"),
    ("segfault", "» corrupted double-linked list\nAborted (core dumped)"),
    ("segfault", "» *** stack smashing detected ***: terminated"),
    ("segfault", "» *** SIGSEGV received at time=1700000000 on cpu 4 ***\nPC: @ 0x7f  (unknown)  (unknown)"),
    ("segfault", "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n" + TRACE + "» RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory."),
    ("segfault", "» terminate called without an active exception\nAborted (core dumped)"),
    ("segfault", "» Fatal Python error: Bus error\n\nThread 0x1 (most recent call first):\n  <no Python frame>"),
    ("segfault", "2025-01-01 00:00:00 [9,1ms] [Warning] [carb.crashreporter-breakpad.plugin] [crash]  buildVersion = '1'\n» 2025-01-01 00:00:00 [9,2ms] [Fatal] [carb.crashreporter-breakpad.plugin] [crash] A crash has occurred. attempting to gather information\nwrapper.sh: done"),
    # --- CUDA through native code ------------------------------------------------------------------------------------
    ("cuda_error", "terminate called after throwing an instance of 'c10::Error'\n»   what():  CUDA error: an illegal memory access was encountered\nException raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:44 (most recent call first):\nframe #0: c10::Error::Error + 0x57 (0x7f in libc10.so)\nAborted (core dumped)"),
    ("cuda_error", "[rank1]:[E101 10:00:00.1 ProcessGroupNCCL.cpp:1515] [PG 0 Rank 1] Process group watchdog thread terminated with exception: CUDA error: unspecified launch failure\nterminate called after throwing an instance of 'c10::DistBackendError'\n»   what():  [PG 0 Rank 1] Process group watchdog thread terminated with exception: CUDA error: unspecified launch failure\nFatal Python error: Aborted"),
    ("cuda_error", "/pytorch/aten/src/ATen/native/cuda/Loss.cu:242: nll_loss_forward: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.\n" + TRACE + "» RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1."),
    ("cuda_error", "» 2025-01-01 00:00:00.1: E external/local_xla/xla/stream_executor/cuda/cuda_event.cc:29] Error polling for event status: failed to query event: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered\n2025-01-01 00:00:00.1: F tensorflow/core/common_runtime/device/device_event_mgr.cc:223] Unexpected Event status: 1\nAborted (core dumped)"),
    ("cuda_error", "» [Error] [carb.gym.plugin] Gym cuda error: an illegal memory access was encountered: ../../../source/plugins/carb/gym/impl/Gym/GymPhysX.cpp: 4202\nSegmentation fault (core dumped)"),
    ("cuda_error", "» 2025-05-04 10:16:56 [58,167ms] [Error] [omni.physx.plugin] PhysX error: GPU solver kernel fail to launch!!, FILE PxgCore.cpp, LINE 920\nwrapper.sh: exit"),
    ("oom_gpu", "» [Error] [carb.gym.plugin] Gym cuda error: out of memory: ../../source/plugins/carb/gym/impl/Gym/GymPhysXCuda.cu: 991\nSegmentation fault (core dumped)"),
    ("oom_gpu", "terminate called after throwing an instance of 'thrust::system::system_error'\n»   what():  CUDA out of memory: cudaErrorMemoryAllocation\nAborted (core dumped)"),
    ("oom_gpu", TRACE + "» torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'"),
    # --- NCCL and friends --------------------------------------------------------------------------------------------
    ("nccl_error", "» [rank0]:[E101 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n[rank0]:[E101 10:00:01.1 ProcessGroupNCCL.cpp:630] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.\nterminate called after throwing an instance of 'c10::DistBackendError'\nFatal Python error: Aborted"),
    ("nccl_error", "» [rank3]:[F101 10:00:00.1 ProcessGroupNCCL.cpp:1250] [PG ID 0 Rank 3] [PG ID 0 Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."),
    ("nccl_error", FAILED.format(1) + "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error, NCCL version 2.20.5\n[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."),
    # --- cascades: the first rank's own cause wins -------------------------------------------------------------------
    ("python_error", FAILED.format(2) + "ValueError: bad batch\n" + RANK.format(0) + "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error, NCCL version 2.20.5\nE0101 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 2 (pid: 9) of binary: /usr/bin/python\n" + TRACE + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n===\ntrain.py FAILED\n"),
    ("oom_gpu", FAILED.format(1) + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has\n[rank0]:[E101 10:30:00.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9) ran for 1800000 milliseconds before timing out.\n[rank0]:[E101 10:30:00.2 ProcessGroupNCCL.cpp:630] Some NCCL operations have failed or timed out."),
    ("import_error", TRACE + "» ModuleNotFoundError: No module named 'apex'\n" + TRACE + "subprocess.CalledProcessError: Command '['/usr/bin/python', 'train.py']' returned non-zero exit status 1."),
    ("segfault", "» [n1:2] Signal: Segmentation fault (11)\n" + TRACE + "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.1.0.4]:35210"),
    ("data_error", TRACE + "FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File \"/opt/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py\", line 308, in _worker_loop\n    data = fetcher.fetch(index)\n» FileNotFoundError: [Errno 2] No such file or directory: '/data/3.png'"),
    ("python_error", "Process ForkServerProcess-3:\nTraceback (most recent call last):\n  File \"/opt/lib/python3.10/multiprocessing/process.py\", line 314, in _bootstrap\n    self.run()\n» AttributeError: 'Ant' object has no attribute 'torso'\n" + TRACE.replace("/home/me/train.py\", line 5", "/opt/lib/python3.10/multiprocessing/connection.py\", line 383") + "EOFError"),
    ("oom_gpu", "(WorkerDict pid=71) Traceback (most recent call last):\n" + TRACE + "ray.exceptions.RayTaskError(OutOfMemoryError): ray::WorkerDict.update() (pid=71, ip=10.0.0.1)\n  File \"/home/me/actor.py\", line 3, in update\n    loss.backward()\n» torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has"),
    ("python_error", "(EngineCore_DP0 pid=9) ERROR 01-01 00:00:00 [core.py:700] EngineCore failed to start.\n(EngineCore_DP0 pid=9) ERROR 01-01 00:00:00 [core.py:700] Traceback (most recent call last):\n(EngineCore_DP0 pid=9) ERROR 01-01 00:00:00 [core.py:700]   File \"/opt/vllm/core.py\", line 691, in run_engine_core\n» (EngineCore_DP0 pid=9) ERROR 01-01 00:00:00 [core.py:700] ValueError: unknown quantization block\n" + TRACE + "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"),
    ("killed", TRACE + "» concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly while the future was running or pending."),
    ("ray_error", "Error executing job with overrides: ['a=1']\nTraceback (most recent call last):\n  File \"/home/me/main.py\", line 3, in main\n    run()\nray.exceptions.RayTaskError(ActorDiedError): ray::Runner.run() (pid=7, ip=10.0.0.1)\n  File \"/home/me/main.py\", line 9, in run\n    ray.get(x)\n» ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: WorkerDict\n\tpid: 71\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called.\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."),
    # --- chains ------------------------------------------------------------------------------------------------------
    ("disk_full", TRACE + "» OSError: [Errno 28] No space left on device\nDuring handling of the above exception, another exception occurred:\n" + TRACE + "RuntimeError: could not finish the file"),
    ("network_error", TRACE + "socket.gaierror: [Errno -3] Temporary failure in name resolution\nDuring handling of the above exception, another exception occurred:\n" + TRACE + "» OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files."),
    ("data_error", TRACE + "» FileNotFoundError: [Errno 2] No such file or directory: 'x.pt'\nThe above exception was the direct cause of the following exception:\n" + TRACE + "RuntimeError: resume failed"),
    ("python_error", TRACE + "KeyError: 'cache'\nDuring handling of the above exception, another exception occurred:\n" + TRACE + "» TypeError: unhashable type: 'list'"),
    ("killed", TRACE + "» KeyboardInterrupt\nDuring handling of the above exception, another exception occurred:\n" + TRACE + "RuntimeError: cannot schedule new futures after shutdown"),
    # --- what comes after the root line ------------------------------------------------------------------------------
    ("python_error", TRACE + "» ValueError: bad shape\nDone."),
    ("python_error", TRACE + "» ValueError: bad shape\n" + "step 1 loss 0.5\nstep 2 loss 0.4\n" * 4),
    ("python_error", "  0%|     | 0/500 [00:00<?, ?it/s]" + TRACE + "» ValueError: bad shape\n  0%|     | 0/500 [00:01<?, ?it/s]"),
    ("python_error", TRACE + "» ValueError: bad shape\n--------------------\nFor simplicity, JAX has removed its internal frames from the traceback of the following exception. Set JAX_TRACEBACK_FILTERING=off to include these."),
    ("python_error", TRACE + "» ValueError: bad shape\nwandb: Waiting for W&B process to finish... (failed 1). Press Control-C to abort syncing.\nwandb: Run summary:\nwandb:  loss 0.31\nwandb: Synced x: https://wandb.ai/a/b/runs/c"),
    ("python_error", TRACE + "» ValueError: bad shape\nException ignored in: <function Pool.__del__ at 0x7f>\nTraceback (most recent call last):\n  File \"/opt/lib/python3.10/multiprocessing/pool.py\", line 268, in __del__\nResourceWarning: unclosed running multiprocessing pool"),
    ("python_error", "╭───────────────── Traceback (most recent call last) ─────────────────╮\n│ /home/me/train.py:12 in <module>                                      │\n│ ❱ 12     main()                                                       │\n╰───────────────────────────────────────────────────────────────────────╯\n» ValueError: bad shape"),
    ("python_error", "2025-01-01 00:00:00.000 | ERROR    | __main__:<module>:12 - An error has been caught in function '<module>', process 'MainProcess' (1), thread 'MainThread' (1):\nTraceback (most recent call last):\n\n> File \"a.py\", line 10, in <module>\n    foo()\n    └ <function foo at 0x7f>\n\n  File \"a.py\", line 5, in foo\n    raise ValueError(x)\n\n» ValueError: bad shape"),
    ("python_error", "  File \"/home/me/train.py\", line 72\n    with open(, 'w') as f:\n              ^\n» SyntaxError: invalid syntax"),
    ("python_error", "    return self._call_impl(*args)\n  File \"/home/me/net.py\", line 7, in forward\n    return x @ w\n» RuntimeError: size mismatch"),
    ("python_error", "0: " + "\n0: ".join(TRACE.strip("\n").splitlines()) + "\n» 0: ValueError: bad shape\nsrun: error: n01: task 0: Exited with exit code 1\nsrun: Terminating StepId=1.0\nslurmstepd: error: *** STEP 1.0 ON n01 CANCELLED AT 2025-01-01T00:00:00 ***"),
    ("python_error", "---------------------------------------------------------------------------\nValueError                                Traceback (most recent call last)\nCell In[3], line 2\n      1 x = 1\n----> 2 train(x)\n\nFile ~/train.py:12, in train(x)\n     10 y = x\n---> 12     raise ValueError('bad shape')\n\n» ValueError: bad shape"),
    # --- refused before the start ------------------------------------------------------------------------------------
    ("config_error", "usage: train.py [-h] [--lr LR]\n» train.py: error: unrecognized arguments: --lrr 3"),
    ("config_error", "usage: train.py [-h] --data DATA\n» train.py: error: the following arguments are required: --data"),
    ("config_error", "usage: t.py [-h]\n» t.py: error: argument --opt: invalid choice: 'adm' (choose from 'adam', 'sgd')"),
    ("config_error", "usage: t.py [-h]\n» t.py: error: argument --lr: invalid float value: 'x'"),
    ("config_error", "» Could not override 'trainer.lrr'.\nTo append to your config use +trainer.lrr=1\nKey 'lrr' is not in struct\n    full_key: trainer.lrr\n    object_type=dict\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."),
    ("config_error", "» In 'train': Could not find 'model/huge'\n\nAvailable options in 'model':\n\tsmall\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."),
    ("config_error", "Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n\n» Error: No such option: --lrr"),
    ("config_error", "FATAL Flags parsing error:\n»   Unknown command line flag 'lrr'. Did you mean: lr ?\nPass --helpshort or --helpfull to see help on flags."),
    ("config_error", "╭─ Parsing error ───────────────╮\n» │ Unrecognized options: --lrr   │\n│ ───────────────────────────── │\n╰───────────────────────────────╯"),
    ("config_error", "Traceback (most recent call last):\n  File \"/home/me/t.py\", line 3, in <module>\n    w = config[\"warmup\"]\n» KeyError: 'warmup'"),
    # --- the rest ----------------------------------------------------------------------------------------------------
    ("disk_full", "» cp: error writing '/out/x.pt': No space left on device"),
    ("disk_full", TRACE + "» safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: \"No space left on device\" })"),
    ("network_error", "Cloning into 'x'...\n» fatal: unable to access 'https://github.com/a/b.git/': Could not resolve host: github.com"),
    ("auth_error", "» wandb: ERROR api_key not configured (no-tty). call wandb.login(key=[your_api_key])"),
    ("divergence", "Epoch: [0]  [ 20/1000]  eta: 0:10:00  lr: 0.01  loss: 9.1 (7.2)\n» Loss is nan, stopping training\n{'loss_ce': nan}"),
    ("divergence", TRACE + "» ValueError: Expected parameter loc (Tensor of shape (4, 2)) of distribution Normal(loc: torch.Size([4, 2]), scale: torch.Size([4, 2])) to satisfy the constraint Real(), but found invalid values:\ntensor([[nan, nan],\n        [nan, nan]], device='cuda:0')"),
    ("stall", "step 31 loss 0.2\n» CRITICAL watchdog: no progress for 1800 s, hang detected, aborting"),
    ("stall", "» Timeout (0:30:00)!\nThread 0x00007f (most recent call first):\n  File \"train.py\", line 3 in wait"),
    ("port_conflict", "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n" + TRACE + "» RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)"),
)  # fmt: skip
