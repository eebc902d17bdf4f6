"""Names what a package calls today the argument, attribute or module that a program still uses. Pure."""

from __future__ import annotations

import re

from mcp_server.diagnosis.failure.steps.row import NextStep, Scene, fill_in
from mcp_server.text.regex import compile_lazily

# Arguments that a newer version calls otherwise: (argument, what the place must show) and what to write.
_ARGUMENTS = (
    ("evaluation_strategy", "", "eval_strategy"),
    ("eval_strategy", "TrainingArguments", "evaluation_strategy (transformers before 4.41)"),
    ("tokenizer", "Trainer", "processing_class"),
    ("processing_class", "Trainer", "tokenizer (transformers before 4.46)"),
    ("no_cuda", "TrainingArguments", "use_cpu"),
    ("use_auth_token", "", "token"),
    ("dtype", "__init__|from_pretrained", "torch_dtype (transformers before 4.56)"),
    ("max_seq_length", "SFT", "max_length in SFTConfig"),
    ("gpus", "Trainer", 'devices with accelerator="gpu"'),
    ("progress_bar_refresh_rate", "Trainer", "enable_progress_bar or TQDMProgressBar(refresh_rate=)"),
    ("resume_from_checkpoint", "Trainer", "trainer.fit(..., ckpt_path=)"),
    ("checkpoint_callback", "Trainer", "enable_checkpointing"),
    ("weights_summary", "Trainer", "enable_model_summary"),
    ("replace_sampler_ddp", "Trainer", "use_distributed_sampler"),
    ("early_stopping_rounds", "train|lightgbm|lgb|LGBM", "callbacks=[lgb.early_stopping(n)]"),
    ("early_stopping_rounds", "fit", "early_stopping_rounds in the estimator's constructor"),
    ("eval_metric", "fit", "eval_metric in the estimator's constructor"),
    ("verbose_eval", "train", "callbacks=[lgb.log_evaluation(n)]"),
    ("evals_result", "lgb|lightgbm|train", "callbacks=[lgb.record_evaluation(d)]"),
    ("sparse", "OneHotEncoder", "sparse_output"),
    ("base_estimator", "", "estimator"),
    ("affinity", "Cluster", "metric"),
    ("squared", "mean_squared_error", "root_mean_squared_error instead of squared=False"),
    ("normalize", "", "a StandardScaler before the model"),
    ("error_bad_lines", "", "on_bad_lines='skip'"),
    ("line_terminator", "to_csv", "lineterminator"),
    ("delim_whitespace", "", "sep=r'\\s+'"),
    ("lr", "(?i)keras|optimizer|Adam|SGD|RMSprop", "learning_rate"),
    ("decay", "(?i)keras|optimizer|Adam|SGD", "weight_decay or a learning rate schedule"),
    ("batch_input_shape", "", "batch_shape (or tf_keras, with TF_USE_LEGACY_KERAS=1)"),
    ("period", "ModelCheckpoint", "save_freq"),
    ("verbose", "LR|Scheduler", "scheduler.get_last_lr(), since it has no verbose"),
    ("size_average", "", "reduction='mean'"),
    ("axis_resources", "", "in_shardings and out_shardings"),
    ("multichannel", "", "channel_axis=-1"),
    ("dispatch_batches", "Accelerator", "dataloader_config=DataLoaderConfiguration(dispatch_batches=)"),
    ("logging_dir", "Accelerator", "project_dir"),
    ("fp16", "Accelerator", "mixed_precision='fp16'"),
)
# Attributes and names that a newer version has no more, with the package that had them, and what to write.
_NAMES = {
    ("numpy", "float"): "float",
    ("numpy", "int"): "int",
    ("numpy", "bool"): "bool",
    ("numpy", "object"): "object",
    ("numpy", "str"): "str",
    ("numpy", "float_"): "np.float64",
    ("numpy", "Inf"): "np.inf",
    ("numpy", "NaN"): "np.nan",
    ("numpy", "product"): "np.prod",
    ("numpy", "cumproduct"): "np.cumprod",
    ("numpy", "in1d"): "np.isin",
    ("numpy", "trapz"): "np.trapezoid",
    ("collections", "Mapping"): "collections.abc.Mapping",
    ("collections", "Iterable"): "collections.abc.Iterable",
    ("collections", "Callable"): "collections.abc.Callable",
    ("inspect", "getargspec"): "inspect.getfullargspec",
    ("PIL.Image", "ANTIALIAS"): "Image.LANCZOS",
    ("PIL.Image", "LINEAR"): "Image.BILINEAR",
    ("jax", "tree_map"): "jax.tree.map",
    ("jax", "tree_multimap"): "jax.tree.map",
    ("jax.random", "KeyArray"): "jax.Array",
    ("jax.core", "Shape"): "tuple[int, ...]",
    ("tensorflow", "Session"): "tf.compat.v1.Session",
    ("tensorflow", "placeholder"): "tf.compat.v1.placeholder",
    ("tensorflow", "contrib"): "TensorFlow 1.15, or the successor of that part",
    ("torch", "concatenate"): "torch.cat",
    ("pkgutil", "ImpImporter"): "a newer setuptools and pip (Python 3.12 dropped it)",
    ("scipy.misc", "imread"): "imageio.imread",
    ("scipy.signal", "hann"): "scipy.signal.windows.hann",
    ("scipy.integrate", "trapz"): "scipy.integrate.trapezoid",
    ("transformers", "AdamW"): "torch.optim.AdamW",
    ("transformers.optimization", "AdamW"): "torch.optim.AdamW",
    ("huggingface_hub", "cached_download"): "huggingface_hub<0.26 (or a newer diffusers)",
    ("numcodecs.blosc", "cbuffer_sizes"): "numcodecs<0.16 (or zarr 3)",
    ("huggingface_hub", "HfFolder"): "a newer datasets and transformers (or huggingface_hub<1)",
    ("datasets", "load_metric"): "evaluate.load",
    ("torch", "_six"): "the standard library (torch._six is gone)",
    ("sklearn.externals", "joblib"): "the package joblib",
    ("sklearn.ensemble", "_gb_losses"): "the scikit-learn that wrote the file",
    ("fractions", "gcd"): "math.gcd",
    ("collections", "MutableMapping"): "collections.abc.MutableMapping",
    ("collections", "Sequence"): "collections.abc.Sequence",
    ("markupsafe", "soft_unicode"): "a newer jinja2 (or markupsafe==2.0.1)",
    ("jinja2", "escape"): "markupsafe.escape",
    ("werkzeug.urls", "url_quote"): "werkzeug<3 (or a newer flask)",
    ("sklearn.preprocessing", "Imputer"): "sklearn.impute.SimpleImputer",
    ("torchtext.data", "Field"): "torchtext<0.9",
    ("pytorch_lightning.utilities.distributed", "rank_zero_only"): "pytorch_lightning.utilities.rank_zero",
    ("pytorch_lightning", "metrics"): "torchmetrics",
    ("mmcv", "Config"): "mmengine.Config",
    ("mmcv.utils", "Config"): "mmengine.Config",
    ("huggingface_hub", "split_torch_state_dict_into_shards"): "a newer huggingface_hub",
    ("transformers", "top_k_top_p_filtering"): "an older transformers (<4.39)",
    ("scipy.misc", "imresize"): "PIL.Image.resize",
    ("scipy.misc", "toimage"): "PIL.Image.fromarray",
    ("scipy", "interp"): "numpy.interp",
    ("torch", "qr"): "torch.linalg.qr",
    ("torch", "solve"): "torch.linalg.solve",
    ("torch", "symeig"): "torch.linalg.eigh",
    ("torch", "lstsq"): "torch.linalg.lstsq",
    ("gym.wrappers", "Monitor"): "gymnasium.wrappers.RecordVideo",
    ("jax.experimental", "maps"): "jax.sharding (shard_map)",
    ("jax.experimental", "host_callback"): "jax.pure_callback or jax.debug.callback",
    ("jax", "linear_util"): "jax.extend.linear_util",
    ("jax.interpreters", "xla"): "jax.core (an older jax, or a newer package)",
    ("DataFrame", "append"): "pd.concat",
    ("Series", "append"): "pd.concat",
    ("DataFrame", "iteritems"): "items()",
    ("Series", "iteritems"): "items()",
    ("DataFrame", "ix"): "loc or iloc",
    ("DataFrame", "applymap"): "map",
    ("FreeTypeFont", "getsize"): "getbbox",
    ("ImageDraw", "textsize"): "textbbox",
    ("CountVectorizer", "get_feature_names"): "get_feature_names_out",
    ("TfidfVectorizer", "get_feature_names"): "get_feature_names_out",
    ("OneHotEncoder", "get_feature_names"): "get_feature_names_out",
    ("_MultiProcessingDataLoaderIter", "next"): "next(iterator)",
    ("_SingleProcessDataLoaderIter", "next"): "next(iterator)",
    ("Adam", "lr"): "learning_rate",
    ("SGD", "lr"): "learning_rate",
}
# Modules by the name of the package that installs them, where it is another.
_PACKAGES = {
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "bs4": "beautifulsoup4",
    "dotenv": "python-dotenv",
    "hydra": "hydra-core",
    "git": "gitpython",
    "attr": "attrs",
    "Crypto": "pycryptodome",
    "google.protobuf": "protobuf",
    "pytorch_lightning": "pytorch-lightning",
    "faiss": "faiss-cpu (or faiss-gpu-cu12)",
    "umap": "umap-learn",
    "serial": "pyserial",
    "pkg_resources": "setuptools<81",
    "distutils": "setuptools (Python 3.12 has no distutils)",
    "dateutil": "python-dateutil",
    "segment_anything": "git+https://github.com/facebookresearch/segment-anything",
    "clip": "git+https://github.com/openai/CLIP",
    "ruamel": "ruamel.yaml",
    "ale_py": "gymnasium[atari]",
    "OpenGL": "PyOpenGL",
    "fitz": "pymupdf",
    "docx": "python-docx",
    "sentence_transformers": "sentence-transformers",
    "lightning_fabric": "lightning",
    "transformer_engine": "transformer_engine[pytorch] (--no-build-isolation)",
    "flash_attn": "flash-attn --no-build-isolation (or use attn_implementation=sdpa)",
    "causal_conv1d": "causal-conv1d (--no-build-isolation, after torch)",
    "mamba_ssm": "mamba-ssm (--no-build-isolation, after torch)",
    "amp_C": "NVIDIA apex built with --cuda_ext",
    "apex": "NVIDIA apex from its source (or use torch.amp and fused AdamW instead)",
    "fused_layer_norm_cuda": "NVIDIA apex built with --cuda_ext",
    "tf_keras": "tf-keras",
}
_ARGUMENT = compile_lazily(
    r"([\w.]{0,80})\(?\)? ?got an unexpected keyword argument ['\"](\w+)"
    r"|(?:Unrecognized|Argument\(s\) not recognized:?|unexpected keyword) \S{0,40}['\"{](\w+)"
)
_NO_ATTRIBUTE = compile_lazily(
    r"(?:module|type object)? ?'([\w.]{1,60})'(?: object)? has no attribute '(\w+)'"
    r"|cannot import name '(\w+)' from '([\w.]{1,60})'"
)
_PACKAGE = compile_lazily(r"[\w-]<\d|==\d|^an? (?:newer|older) ")
_NO_MODULE = compile_lazily(r"No module named '?([\w.]{1,60})")


def name_today(scene: Scene) -> NextStep | None:
    """Return what takes the place of the argument, attribute or module that ``scene`` lacks, or None."""
    line = scene.line
    if match := _ARGUMENT.search(line):
        used, where = match[2] or match[3], f"{match[1] or ''}\n{scene.line}\n{scene.library}"
        for argument, place, new in _ARGUMENTS:
            if argument == used and re.search(place, where):
                return _say("This version takes no {0}: write {1} {at}, then launch_run again.", used, new, scene=scene)
    if match := _NO_ATTRIBUTE.search(line):
        owner, name = (match[1], match[2]) if match[1] else (match[4], match[3])
        if successor := _NAMES.get((owner, name)):
            said = "{0} has no {1} any more: use {2} {at}, or an older version of the package."
            if _PACKAGE.search(successor):
                said = "{0} has no {1} any more: install {2}, then launch_run again."
            return _say(said, owner, name, successor, scene=scene)
    if scene.kind == "import_error" and (match := _NO_MODULE.search(line)):
        module = match[1]
        if package := _PACKAGES.get(module) or _PACKAGES.get(module.partition(".")[0]):
            return _say(
                "Module {0} is missing: pip install {1} into this run's environment, then launch_run again.",
                module,
                package,
                scene=scene,
            )
    return None


def _say(advice: str, *parts: str, scene: Scene) -> NextStep | None:
    text = fill_in(advice, parts, scene.at)
    return NextStep(False, "stop", text) if text else None
