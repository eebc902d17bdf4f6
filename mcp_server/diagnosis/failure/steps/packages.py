"""Next steps where packages do not fit together: builds, versions, compilers, missing libraries."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

_ANY = ""
# First match wins: special before general.
# fmt: off
ROWS = (
    # --- builds
    row(_ANY, r"No module named '(torch|numpy|packaging|wheel|Cython|psutil|setuptools)'",
        r"(?i)Getting requirements to build|build_wheel|egg_info|pip-(?:install|build|req)|metadata-generation"
        r"|subprocess-exited", "stop",
        "Its build does not see {0}: install {0} first, then `pip install --no-build-isolation` that package."),
    row(_ANY, r"bare_metal_version|CUDA_HOME environment variable is not set|CUDA_HOME does not exist"
        r"|nvcc.{0,20}not found", "", "stop",
        "The build finds no nvcc: install the CUDA toolkit of torch's version and set CUDA_HOME, or take a "
        "ready wheel."),
    row(_ANY, r"(?m)Cuda extensions are being compiled with a version of Cuda that does not match", "", "stop",
        "nvcc is of CUDA {1}, torch of {0}: set CUDA_HOME to a toolkit {0} or install torch for {1}, then build again.",
        log=r"(?s)torch\.__version__ += \S+\+cu(\d\d\d?).*?release ([\d.]+\d)"),
    row(_ANY,
        r"(?m)Cuda extensions are being compiled with a version of Cuda[\s\S]{0,200}compiled with Cuda ([\d.]+\d)", "",
        "stop", "nvcc is of another CUDA than torch's ({0}): set CUDA_HOME to a toolkit {0}, then build again."),
    row(_ANY, r"(?m)detected CUDA version \(?([\d.]+\d)\)? mismatches[\s\S]{0,80}PyTorch \(?([\d.]+\d)", "", "stop",
        "nvcc is of CUDA {0}, torch of {1}: set CUDA_HOME to a toolkit {1}, or install torch for {0}, then launch_run "
        "again."),
    row("import_error python_error", r"Error building extension '(\w+)'",
        r"unsupported GNU version! gcc versions later than (\d+)", "stop",
        "nvcc takes gcc up to {1} only: set CC and CXX to such a gcc, or use a newer CUDA toolkit, for {0}.",
        log=r"gcc versions later than (\d+)"),
    row("import_error python_error", r"Error building extension '(\w+)'", "", "stop",
        "{0} cannot be compiled as {1} is missing: install it (headers of CUDA or python3-dev), then launch_run again.",
        log=r"fatal error: (\S{1,60}): No such file"),
    row("import_error python_error", r"Error building extension '(\w+)'", "", "stop",
        "{0} cannot be compiled (the compiler's own error is above): fit nvcc, gcc and torch; delete ~/.cache/"
        "torch_extensions."),
    row(_ANY, r"Ninja is required", "", "stop",
        "The extension needs ninja: pip install ninja into this run's environment (its bin on PATH), then launch_run "
        "again."),
    row("", r"fatal error: Python\.h", "", "stop",
        "The compiler lacks Python.h: install python3-dev (or use conda's Python), or turn torch.compile off, then "
        "launch_run again."),
    row("", r"fatal error: ((?:cuda|cublas|cusparse|cusolver|cudnn|nccl|nv)\w*\.\w+): No such file", "", "stop",
        "The compiler finds no {0}: install the CUDA toolkit with headers and set CUDA_HOME, then launch_run again."),
    row("", r"fatal error: (\S{1,60}\.\w+): No such file", "", "stop",
        "The compiler finds no {0}: install the development package that has it, or a ready wheel, then launch_run "
        "again."),
    row(_ANY, r"(?m)Failed to find C compiler", "", "stop",
        "Triton needs a C compiler: install gcc or set CC in env, or turn torch.compile off, then launch_run again."),
    row("python_error import_error cuda_error", r"(?m)cannot find -lcuda|-lcuda\b.{0,40}cannot find", "", "stop",
        "The linker does not find libcuda.so: add its directory (or CUDA's stubs) to LIBRARY_PATH in env, then "
        "launch_run again."),
    row(_ANY, r"(?m)PTXAS|ptxas", r"sm_\d+\w?'? is not defined|gpu-name", "stop",
        "This Triton does not know this GPU ({0}): install a newer PyTorch and Triton, or set TRITON_PTXAS_PATH to a "
        "newer ptxas.", log=r"(sm_\d+\w?)'? is not defined|gpu-name[= ]+(?:sm_)?(\w+)"),
    # --- compiled packages that do not fit
    row(_ANY, r"flash_attn\S{0,80}undefined symbol|flash_attn_2_cuda|flash_attn_gpu", "", "stop",
        "flash-attn was built for another torch: pip install --no-build-isolation --force-reinstall flash-attn, or "
        "attn_implementation=sdpa."),
    row("import_error", r"undefined symbol: _?\w*nvJitLink|libnvJitLink", "", "stop",
        "An older CUDA's libnvJitLink is found first: unset LD_LIBRARY_PATH (or install torch's "
        "nvidia-nvjitlink), then launch_run again."),
    row("import_error", r"undefined symbol: (?:nccl|ncclC)\w+", "", "stop",
        "Another NCCL is found before torch's own: unset LD_LIBRARY_PATH and LD_PRELOAD, or reinstall torch's "
        "nvidia-nccl."),
    row("import_error", r"undefined symbol: (?:cudnn|cublas|cusparse|cusolver|cufft|nvrtc|__cuda|cu)\w+", "", "stop",
        "Another CUDA library is found before torch's own: unset LD_LIBRARY_PATH, or reinstall torch, then launch_run "
        "again."),
    row("import_error", r"undefined symbol: iJIT_NotifyEvent", "", "stop",
        "This torch does not fit conda's mkl: install mkl<2024.1 (or torch from pip), then launch_run again."),
    row("import_error", r"site-packages[/\\](\w+?)(?:\.cpython\S*|[/\\]\S*)\.(?:so|pyd)\S{0,20} undefined symbol: ", "",
        "stop", "{0} was compiled for another torch or Python: reinstall {0} for the installed one, then launch_run "
        "again."),
    row(_ANY, r"Could not load library (lib\w+\.so\S*?)\.? |(lib(?:cudnn|cublas|cudart|nccl|cusparse|cufft|nvrtc"
        r"|cupti)\w*\.so[\d.]*): cannot open", "", "stop",
        "{0}{1} is not found: install the package that has it (nvidia-cudnn-cu12 …), or put its directory into "
        "LD_LIBRARY_PATH."),
    row("import_error", r"(libGL\.so\S*|libgthread\S*|libglib\S*|libSM\.so\S*|libXext\S*|libXrender\S*): cannot open",
        "", "stop", "{0} is missing: install opencv-python-headless instead of opencv-python, or the package libgl1 "
        "(libglib2.0-0)."),
    row("import_error", r"libpython(\d\.\d+)\S*: cannot open", "", "stop",
        "The shared library of Python {0} is not found: add that Python's lib directory to LD_LIBRARY_PATH in env."),
    row("import_error", r"numpy\.\w+ size changed|NumPy 1\.x|_ARRAY_API|(?i:numpy is not available)", "", "stop",
        "A compiled package was built for another NumPy: install numpy<2, or newer builds of the others, then "
        "launch_run again."),
    row(_ANY, r"jaxlib version ([\d.]+\d) is newer than and incompatible with jax version ([\d.]+\d)", "", "stop",
        "jaxlib is {0} and jax {1}: install both of one release (pip install -U jax jaxlib), then launch_run again."),
    row(_ANY, r"(?:PyTorch and torchvision|torchvision).{0,60}compiled with different CUDA|operator torchvision::nms",
        "", "stop",
        "torch and torchvision are not of one release: install the pair that belongs together, then launch_run "
        "again."),
    row(_ANY, r"Couldn't find CUDA library root|XLA requires CUDA", "", "stop",
        "XLA finds no CUDA: install jax[cuda12], or set XLA_FLAGS=--xla_gpu_cuda_data_dir=..., then launch_run again."),
    row(_ANY, r"Descriptors cannot (?:not )?be created directly", "", "stop",
        "protobuf is too new for a package: install protobuf<3.21, or update that package, then launch_run again."),
    row("import_error", r"GLIBCXX_[\d.]+|CXXABI_[\d.]+", "", "stop",
        "The system's libstdc++ is too old: put conda's before it (LD_LIBRARY_PATH=$CONDA_PREFIX/lib, conda "
        "install libstdcxx-ng)."),
    row(_ANY, r"libcudart\.so\.(\d+)[\d.]*: cannot open", "", "stop",
        "A package was built for CUDA {0}, which is not here: reinstall it for torch's CUDA, or add CUDA {0} "
        "to LD_LIBRARY_PATH."),
    row("import_error", r"(lib(?:c10|torch)\w*\.so\S*?): cannot open", "", "stop",
        "An extension was built for another torch ({0}): reinstall it, or import torch before it {at}, then "
        "launch_run again."),
    row(_ANY, r"[Ff]ailed (?:building|to build)(?: installable)? wheels?(?: for)? (\S{1,60})",
        r"fatal error|error: command|nvcc|gcc|CMake", "stop",
        "{0} cannot be compiled (the compiler's error is above): take a version with a ready wheel, or install "
        "its compiler and headers."),
    row(_ANY, r"Package '([^']{1,60})' requires a different Python: ([\d.]+) not in '([^']{1,20})'", "", "stop",
        "{0} needs Python {2}, and this is {1}: use such an environment, or an older {0}, then launch_run again."),
    row(_ANY, r"No solution found when resolving|LibMambaUnsatisfiable|UnsatisfiableError|PackagesNotFoundError", "",
        "stop",
        "The requested packages do not fit together or do not exist: loosen the pin that the lines below name."),
    row("import_error", r"No module named 'torchvision\.transforms\.functional_tensor'", "", "stop",
        "basicsr is for an older torchvision: install torchvision<0.17 with its torch, or basicsr-fixed, then "
        "launch_run again."),
    row("import_error", r"No module named 'mmcv\._ext'|mmcv.{0,40}_ext", "", "stop",
        "mmcv has no compiled operators: `mim install mmcv` for this torch and CUDA (not mmcv-lite), then "
        "launch_run again."),
    row("import_error", r"No module named '(?:pytorch_lightning|lightning)\.(?:metrics|utilities\.distributed)", "",
        "stop",
        "This part moved: use torchmetrics (metrics) or utilities.rank_zero, or install pytorch-lightning<1.8."),
    # --- bitsandbytes, xformers
    row(_ANY, r"str2optimizer|cadam32bit|cget_col_row_stats|cquantize_blockwise|clion32bit"
        r"|'NoneType' object has no attribute 'c\w+32bit", "", "stop",
        "bitsandbytes found no CUDA library: install a version for this CUDA (`python -m bitsandbytes` shows "
        "it), then launch_run again."),
    row(_ANY, r"(?m)(?i:CUDA SETUP)|bitsandbytes.{0,80}(?:compiled without|no GPU|not find)|libbitsandbytes_c\w+", "",
        "stop", "bitsandbytes has no library for this CUDA: pip install -U bitsandbytes, or set BNB_CUDA_VERSION "
        "(`python -m bitsandbytes`)."),
    row(_ANY, r"No operator found for `memory_efficient", "", "stop",
        "xFormers was built for torch {0}, here is {1}: reinstall xformers for it, or turn xformers off (sdpa).",
        log=r"(?s)xFormers was built for:\s+PyTorch (\S{1,20}).{0,60}?\(you have (\S{1,20})\)"),
    # --- versions
    row("import_error",
        r"([\w.-]{1,40}(?:[<>=!~]=?[\w.*]+,?)+) is required for a normal functioning of this module, but found (["
        r"\w.-]+==\S{1,20})", "", "stop",
        "This package needs {0}, and {1} is installed: pip install '{0}', then launch_run again."),
    row("import_error", r"([\w.-]{1,40}) ?(?:\(?([<>=!~]=?[\w.,<>=!~* ]{1,24})\)?) (?:is required|required"
        r"|must be installed).{0,60}(?:found|have|installed|got)\D{0,20}([\d][\w.]*)", "", "stop",
        "{0}{1} is needed, and {2} is installed: install that version, then launch_run again."),
    row("import_error other", r"No matching distribution found for (\S{1,60})", r"from versions: none", "stop",
        "pip finds no {0} for this Python: correct the name, the index URL or the Python version, then "
        "launch_run again."),
    row("import_error other", r"No matching distribution found for (\S{1,60})", "", "stop",
        "There is no {0}: choose one of the versions that pip lists ({1}), then launch_run again.",
        log=r"from versions: [^)\n]{0,1500}?((?:[\w.+-]+, )?[\w.+-]+)\)"),
    row("import_error other", r"No matching distribution found for (\S{1,60})", "", "stop",
        "pip finds no {0}: correct the name, the index URL or the Python version, then launch_run again."),
    row(_ANY, r"ResolutionImpossible|conflicting dependencies", "", "stop",
        "The requirements contradict each other: {0}; change that pin, then launch_run again.",
        log=r"(?m)^ +(\S{1,40}(?: \S{1,20})? depends on .{1,60})$"),
    row(_ANY, r"ResolutionImpossible|conflicting dependencies", "", "stop",
        "The requirements contradict each other: loosen one of the pins that pip names, then launch_run again."),
    row(_ANY, r"CondaError: Run 'conda init'|Your shell has not been properly configured to use 'conda activate'|"
        r"conda: command not found", "", "stop",
        "conda is not set up in this shell: use `conda run -n ENV ...`, or source .../etc/profile.d/conda.sh first."),
    row(_ANY, r"CMake .{0,40}(?:required|must be installed|not found)|cmake: command not found", "", "stop",
        "The build needs CMake: install cmake, or take a ready wheel, then launch_run again."),
    row(_ANY, r"externally-managed-environment", "", "stop",
        "pip may not change the system's Python: make a virtual environment (python3 -m venv) and install there."),
    # --- imports of the project itself
    row("import_error", r"cannot import name '(\w+)' from partially initialized module '([\w.]+)'", "", "stop",
        "{1} imports itself in a circle: move the import of {0} into the function that needs it {at}, then launch_run "
        "again."),
    row("import_error python_error", r"partially initialized module '([\w.]+)' has no attribute '(\w+)'", "", "stop",
        "A file of the project named {0}.py hides the package {0}: rename that file {at}, then launch_run again."),
    row("import_error", r"attempted relative import (?:with no known parent|beyond top-level)", "", "stop",
        "The file is run as a script: start it as a module (python -m package.module, from the project's root), then "
        "launch_run again."),
    row("import_error", r"'([\w.]+)' is not a package", "", "stop",
        "A file of the project hides the package {0}: rename it {at}, then launch_run again."),
    row("import_error", r"No module named 'mpi4py'", r"deepspeed", "stop",
        "DeepSpeed looked for MPI as no launcher set RANK: start with deepspeed or torchrun, then launch_run again."),
    row("import_error", r"(?i)Keras 3|tf-keras", "", "stop",
        "This package needs Keras 2: pip install tf-keras (or set USE_TF=0 for transformers), then launch_run again."),
    row("import_error", r"cannot import name '(\w{1,50})' from 'transformers", "", "stop",
        "This transformers has no {0}: install the version that the program names, newer or older, then "
        "launch_run again."),
    row("import_error", r"libtorchcodec", "", "stop",
        "torchcodec finds no FFmpeg that it takes: conda install -c conda-forge 'ffmpeg<8', or "
        "--dataset.video_backend=pyav, then launch_run again.", log=r"lerobot"),
    row("import_error", r"libtorchcodec", "", "stop",
        "torchcodec finds no FFmpeg that it takes: conda install -c conda-forge 'ffmpeg<8', then launch_run again."),
    row("import_error", r"[Ff]{2}mpeg", "", "stop",
        "FFmpeg is missing or of another version: install one that torchcodec knows, or another video backend."),
)
# fmt: on
