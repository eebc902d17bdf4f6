"""Next steps after failures of JAX, TensorFlow, tree and classical models, configurations and experiment trackers."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

_ANY = ""
# First match wins: special before general.
# fmt: off
ROWS = (
    # --- JAX
    row(_ANY, r"(?:Tracer(?:Bool|Integer|Array)?Conversion|Concretization\w*|NonConcreteBoolean\w*)Error",
        r"for (?:scan|while_loop|cond|grad|vmap|checkpoint|remat|fori_loop|custom_vjp|pmap|shard_map)\b"
        r"|value of the arguments? \w+\[|traced array with shape \w+\[\d", "stop",
        "Python needs a traced value {at}, which cannot be static there: use jnp.where or lax.cond instead of if, "
        "and arrays instead of float() or int()."),
    row(_ANY, r"(?:Tracer(?:Bool|Integer|Array)?Conversion|Concretization\w*|NonConcreteBoolean\w*)Error", "", "stop",
        "Python needs a traced value {at}: use jnp.where or lax.cond there, or make the argument static "
        "(static_argnums)."),
    row(_ANY, r"UnexpectedTracerError|leaked tracer", "", "stop",
        "A traced value was kept beyond its function {at}: return it instead of storing it; "
        "jax.checking_leaks() shows it."),
    row(_ANY, r"Array has been deleted|[Bb]uffer .{0,40}(?:deleted|donated)", "", "stop",
        "The array {at} was donated to a jitted call: use what the call returns, or drop donate_argnums, then "
        "launch_run again."),
    row(_ANY, r"dimension (\d+) should be divisible by (\d+), but it is equal to (\d+)", "", "stop",
        "Dimension {0} is {2}, not divisible by the mesh axis of {1}: set the global batch to a multiple of {1} {at}."),
    row(_ANY, r"ScopeParamShapeError|ScopeParamNotFoundError", "", "stop",
        "The parameters are of another model: use the configuration that they were made with {at}, then "
        "launch_run again."),
    row(_ANY, r"scan (?:body function )?carry input and (?:carry )?output must have (?:equal|the same) types", "",
        "stop", "The carry of lax.scan changes its shape or dtype {at}: cast what the body returns to the type of its "
        "input."),
    row(_ANY, r"(?i)libtpu.{0,80}(?:in use|lock)|/tmp/libtpu_lockfile|TPU is already in use|open\(/dev/(?:accel"
        r"|vfio)\S*\): (?:Operation not permitted|Device or resource busy)", "", "stop",
        "Another process holds the TPU: stop it (`lsof /dev/accel*`), remove /tmp/libtpu_lockfile, then "
        "launch_run again."),
    row(_ANY,
        r"sharded dimension must be equal to the number of devices.{0,80}with value (\d+) .{0,80}number of devices"
        r"=(\d+)", "", "stop",
        "An array of {0} devices meets {1} here (a checkpoint of another count?): use {0}, or replicate it "
        "anew {at}."),
    row(_ANY, r"tree structures do not match|on-disk value metadata tree", "", "stop",
        "The checkpoint's tree is not the target's (the line names what is missing): restore with its own "
        "configuration, or without a target {at}."),
    row(_ANY, r"requires (\d+) logical devices, but only (\d+)|pmap.{0,80}(\d+) .{0,40}devices.{0,40}only (\d+)", "",
        "stop", "The program wants {0}{2} devices and sees {1}{3}: launch_run with that many gpus=, or lower its mesh "
        "{at}."),
    row(_ANY, r"Non-hashable static arg|unhashable type: '(?:jaxlib|ArrayImpl|DynamicJaxprTracer)", "", "stop",
        "An array is a static argument or a key {at}: drop it from static_argnums, or pass a tuple, then "
        "launch_run again."),
    row(_ANY,
        r"dot_general requires contracting dimensions to have the same shape, got \(?([\d, ]+)\)? and \(?([\d, ]+)", "",
        "stop", "A product of matrices gets {0} and {1} {at}: correct the layer's size or the input's, then launch_run "
        "again."),
    row(_ANY, r"needs PRNG for \"(\w+)\"", "", "stop",
        "apply() lacks a random key: pass rngs={{'{0}': key}} {at}, then launch_run again."),
    row(_ANY, r"because collection \"(\w+)\" is immutable", "", "stop",
        "The call changes {0}: pass mutable=['{0}'] to apply {at} and keep what it returns, then launch_run again."),
    row(_ANY, r"Found (\w+) version (\d+), but JAX was built against version (\d+)", "", "stop",
        "{0} {1} is found and JAX needs {2}: unset LD_LIBRARY_PATH, or upgrade jax[cuda12], then launch_run again."),
    row(_ANY, r"Memory kinds passed to jax\.jit does not match", "", "stop",
        "jax and the package that calls it are of different versions: install the pair that the package names, "
        "then launch_run again."),
    row(_ANY, r"Accuracy\w*\.__new__\(\) missing .{0,40}'task'|missing 1 required positional argument: 'task'", "",
        "stop",
        "torchmetrics wants task='binary', or task='multiclass' with num_classes=, {at}, then launch_run again."),
    row(_ANY, r"indices should be either on cpu or on the same device as the indexed tensor \((\S{1,10})\)", "", "stop",
        "The index or mask is not on {0}, where the tensor is: move it with .to({0}) {at}, then launch_run again."),
    row(_ANY, r"MessagePassing\.propagate.{0,20}only supports|`?edge_index`? (?:must|needs to|should) be", "", "stop",
        "edge_index must be a LongTensor of shape [2, edges]: torch.stack or .t().contiguous() it {at}, then "
        "launch_run again."),
    row(_ANY, r"Unknown model \(([\w.-]{1,60})\)", "", "stop",
        "timm has no model {0}: correct its name (timm.list_models('*...*')), or upgrade timm {at}, then "
        "launch_run again."),
    # --- TensorFlow and Keras
    row(_ANY, r"Shapes? \((?:None|\d+)?,? ?(?:None|\d+)?,? ?(\d*)\) and \([^)]*?(\d*)\) are incompatible"
        r"|`?logits`? and `?labels`? must have the same shape", "", "stop",
        "Targets and outputs differ: integer labels need sparse_categorical_crossentropy, or one-hot them and "
        "fit the last Dense layer {at}."),
    row(_ANY, r"Input 0 of layer ['\"]?([\w./-]+)['\"]? is incompatible with the layer: (.{1,90})", "", "stop",
        "Layer {0}: {1}; reshape the data or set the model's input_shape {at}, then launch_run again."),
    row(_ANY, r"Keras 3 only supports V3 `?\.keras|File format not supported", "", "stop",
        "Keras 3 reads .keras and .h5 only: load with tf_keras (TF_USE_LEGACY_KERAS=1), or "
        "keras.layers.TFSMLayer {at}."),
    row(_ANY, r"Unknown (?:layer|loss function|metric function|optimizer|activation function|object):? '?(\w+)"
        r"|Could not locate (?:class|function) '(\w+)'", "", "stop",
        "Keras does not know {0}{1}: load_model(..., custom_objects={{'{0}{1}': {0}{1}}}) {at}, or "
        "compile=False for a loss or metric."),
    row(_ANY, r"label value of (\d+) which is outside the valid range of \[0, (\d+)\)", "", "stop",
        "Label {0} does not fit {1} outputs: give the last layer more units, or map labels to 0..{1}-1, then "
        "launch_run again."),
    row(_ANY, r"Failed to find data adapter", "", "stop",
        "fit() got lists of another type: pass NumPy arrays or a tf.data.Dataset {at}, then launch_run again."),
    row(_ANY, r"Data cardinality is ambiguous", "", "stop",
        "x and y have different lengths: make both of the same samples {at}, then launch_run again."),
    row(_ANY, r"KerasTensor cannot be used as input to a TensorFlow function"
        r"|Only instances of .?keras\.Layer.? can be added", "", "stop",
        "Keras 3 does not take this: wrap it in a Layer (or keras.ops), or use tf_keras with "
        "TF_USE_LEGACY_KERAS=1 {at}."),
    row(_ANY, r"[Yy]ou must compile your model", "", "stop",
        "The model is not compiled: call model.compile(optimizer, loss) before fit {at}, then launch_run again."),
    row(_ANY, r"Your input ran out of data", "", "stop",
        "The dataset gives fewer batches than steps_per_epoch x epochs: repeat() it or lower steps_per_epoch, then "
        "launch_run again."),
    row(_ANY, r"The filename must end in `([.\w]+)`", "", "stop",
        "The file name must end in {0}: change the path {at}, then launch_run again."),
    # --- classical models
    row(_ANY, r"(?:Input (\w+ )?contains (NaN|infinity)|contains NaN, infinity|NaN, infinity or a value too large)", "",
        "stop", "The data holds NaN or infinity: drop or impute it (SimpleImputer) {at}, or use HistGradientBoosting."),
    row(_ANY, r"(?i)samples of at least 2 classes|only one class (?:present|in)|got 1 class", "", "stop",
        "The labels have one class only: check the label column and the split (stratify=y) {at}, then "
        "launch_run again."),
    row(_ANY, r"[Xx] has (\d+) features,? but (\w+) is expecting (\d+)|number of features .{0,60}\((\d+)\)", "", "stop",
        "{1} was fitted on {2} features and gets {0}: use the same columns in the same order {at}."),
    row(_ANY, r"feature names (?:should match|mismatch|must be)|feature_names mismatch", "", "stop",
        "The columns differ from those of fit: select the same ones in the same order {at}, then launch_run again."),
    row(_ANY, r"n_splits=(\d+) cannot be greater than the number of members in each class"
        r"|least populated class in y has only (\d+)", "", "stop",
        "A class has too few samples: lower n_splits, drop or join rare classes, or no stratify {at}."),
    row(_ANY, r"(?:could not convert string to float|Cannot convert 'b'|non-numeric data|must be int, float or bool"
        r"|DataFrame\.dtypes for data must be)[^'\n]{0,20}'?([^'\n]{0,60})", r"(?i)catboost", "stop",
        "A text column is taken for a number: name the columns in cat_features (or text_features) {at}, then "
        "launch_run again."),
    row(_ANY, r"(?:could not convert string to float|must be int, float or bool"
        r"|DataFrame\.dtypes for data must be)[^'\n]{0,20}'?([^'\n]{0,60})", "", "stop",
        "A column holds text: encode it (astype('category'), enable_categorical=True, or OneHotEncoder) or "
        "drop it {at}."),
    row(_ANY, r"(?i)XGBoost version not compiled with GPU|GPU Tree Learner was not enabled"
        r"|CUDA Tree Learner was not enabled|compiled without (?:GPU|CUDA)", "", "stop",
        "This build has no GPU: set the device to cpu (device='cpu', device_type=cpu), or install a build with "
        "CUDA, then launch_run again."),
    row(_ANY, r"Invalid classes inferred from unique values of .{1,4}\s+Expected: (\[.{1,60}?\]), got (\[.{1,60}?\])",
        "",
        "stop", "y holds {1}, and must be {0}: encode it with LabelEncoder (or subtract its minimum) before fit {at}."),
    row(_ANY, r"Invalid classes inferred from unique values", "", "stop",
        "y must be 0..n-1 without gaps: encode it with LabelEncoder before fit {at}, then launch_run again."),
    row(_ANY, r"label must be in \[0, num_class\)|Label must be in \[0, (\d+)\)", "", "stop",
        "Labels must be 0..num_class-1: set num_class to the number of classes, or encode them (LabelEncoder) "
        "{at}."),
    row(_ANY, r"(?i:catboost).{0,80}(?:CUDA|GPU)|Cannot use GPU", "", "stop",
        "CatBoost cannot use a GPU here: task_type='CPU', or launch_run with gpus= and a driver that fits."),
    # --- configurations
    row("config_error", r"Interpolation key '([^']{1,60})' not found", "", "stop",
        "The configuration refers to ${{{0}}}, which does not exist: define that key or correct its name, then "
        "launch_run again."),
    row("config_error", r"Environment variable '(\w+)' not found|environment variable (\w+) expected, but not set", "",
        "stop", "The variable {0}{1} is not set: give it in launch_run's env, then launch_run again."),
    row("config_error", r"not used by the HfArgumentParser: \[([^\]]{1,80})", "", "stop",
        "The program does not know {0}: correct those names (--help lists all), then launch_run again."),
    row("config_error", r"argument ([\w/-]{1,40}).{0,10}: invalid (\w+) value: (.{1,40})", "", "stop",
        "{2} is not a valid {1}: correct the value of {0} (no comma, no unit), then launch_run again."),
    row("config_error", r"argument ([\w/-]{1,40}).{0,10}: not allowed with argument ([\w/-]{1,40})", "", "stop",
        "{0} and {1} exclude each other: give only one of them, then launch_run again."),
    row("config_error", r"argument ([\w/-]{1,40}).{0,10}: expected (one|at least one|\d+) argument", "", "stop",
        "{0} lacks its value: give it (of a negative or empty value, {0}=VALUE), then launch_run again."),
    row("config_error", r"Value '([^']{1,40})' of type '(\w+)' could not be converted to (\w+)", "", "stop",
        "{0} is not of type {2}: correct the value of {3} in the configuration, then launch_run again.",
        log=r"full_key: ([\w.\[\]]{1,80})"),
    row("config_error", r"Key '([^']{1,40})' (?:is )?not in '(\w+)'", "", "stop",
        "{1} has no key {0}: correct its name ({2}), then launch_run again.", log=r"full_key: ([\w.\[\]]{1,80})"),
    row("config_error", r"Cannot find primary config '([^']{1,60})'", "", "stop",
        "Hydra finds no {0}: correct --config-name or --config-path (-cn, -cd), then launch_run again."),
    row("config_error", r"[Yy]ou must specify '([^']{1,60})'", "", "stop",
        "No option of {0} is chosen: give {0}=OPTION on the command line (Hydra lists them), then launch_run again."),
    row("config_error", r"Multiple values for (\S{1,60})\. To override", "", "stop",
        "{0} is in the defaults twice: write `override {0}: ...` in the second list, then launch_run again."),
    row("config_error", r"Value '([^']{1,40})' is not a supported primitive type|UnsupportedValueType", "", "stop",
        "OmegaConf takes plain values only: convert it (float(), str(), list()) before it goes in {at}."),
    row("config_error", r"could not determine a constructor for the tag '?([^'\n]{1,60})", "", "stop",
        "YAML has the tag {0}, which the loader does not know: remove it, or load with the program's own loader {at}."),
    row(_ANY, r"load\(\) missing 1 required positional argument: 'Loader'", "", "stop",
        "PyYAML 6 wants a loader: yaml.safe_load(...) {at}, or install pyyaml<6, then launch_run again."),
    row("config_error", r"TOMLDecodeError: (.{1,60}) \(at line (\d+), column \d+\)", "", "stop",
        "Line {1} of the TOML file is not valid ({0}): correct it, then launch_run again."),
    row("config_error python_error other", r"Could not consume arg: (\S{1,60})", "", "stop",
        "The program takes no {0}: correct the name of the option (its --help lists all), then launch_run again."),
    row("config_error python_error other",
        r"No action for (?:key|destination key) \"([\w.]{1,60})\"|Key '?\"?([\w.]{1,60})'?\"? is not expected", "",
        "stop", "The configuration's key {0}{1} is not one of the program's: correct it (--print_config shows all), "
        "then launch_run again."),
    row(_ANY, r"(?<![\w.-])([\w.-]{1,80})'? is not in the ([\w:]{1,40}) registry", "", "stop",
        "{0} is not registered ({1}): import its module (custom_imports, __init__.py), or correct type= in the "
        "config."),
    row(_ANY, r"Dataset '([^']{1,80})' is not registered! Available datasets are: (.{1,400})", "", "stop",
        "Data set {0} is not registered: register it first, or correct DATASETS (a tuple of one needs a comma: "
        "('x',))."),
    # --- experiment trackers
    row(_ANY, r"API key must be 40 characters|WANDB_API_KEY|api_key not configured|No API key configured", "", "stop",
        "wandb's key is missing or not whole: name WANDB_API_KEY in launch_run's secrets, or set WANDB_MODE=offline."),
    row(_ANY, r"(?i)wandb|do not have permission to access the requested resource|permission denied",
        r"(?i)wandb[\s\S]*\b403\b", "stop",
        "This wandb account may not write there: correct entity and project, or the WANDB_API_KEY in "
        "launch_run's secrets."),
    row(_ANY, r"could not find (sweep|run|project|artifact) <?([^>\s]{1,100})|[Pp]roject (\S{1,80}) not found",
        r"(?i)wandb", "stop",
        "wandb has no {0} {1}{2} for this account: give it as entity/project/id, or correct the name, then "
        "launch_run again."),
    row(_ANY, r"resum\w+ a run \(([^)\s]{1,80})\) that does not exist", "", "stop",
        "wandb has no run {0}: correct the id, or resume='allow' {at}, then launch_run again."),
    row(_ANY, r"ServiceStartTimeout|ServicePollForToken|Failed to (?:read|start) (?:port info|wandb-core)"
        r"|Timed out waiting for wandb service", "", "retry_changed",
        "wandb's own process did not start in time: raise WANDB__SERVICE_WAIT (300) in env, or set "
        "WANDB_MODE=offline."),
    row(_ANY, r"(COMET_API_KEY|NEPTUNE_API_TOKEN|SWANLAB_API_KEY)|Comet(?:\.ml)? requires an API key"
        r"|(?i:ClearML configuration could not be found)", "", "stop",
        "The experiment tracker has no key here: name its variable ({0}) in launch_run's secrets, or turn the "
        "tracker off."),
    row(_ANY, r"(?i)param value .{0,300}exceeded length limit of '?(\d+)", "", "stop",
        "MLflow takes parameters of {0} characters at most: shorten that value, or log it as an artifact {at}."),
    row(_ANY, r"MlflowException: API request to (https?://[^/\s]{1,80})", "", "retry_later",
        "The MLflow server {0} does not answer: check it and MLFLOW_TRACKING_URI, retry later, or log to "
        "file:./mlruns."),
    row(_ANY, r"Changing param values is not allowed\..{0,40}'key': '([^']{1,40})', 'old_value': '([^']{0,30})', "
        r"'new_value': '([^']{0,30})'", "", "stop",
        "MLflow has {0}={1} for this run, not {2}: resume with that, or log to a new run (nested=True) instead of the "
        "old run_id."),
    row(_ANY, r"filepath provided must end in `?(\.[\w.]{1,20}?)`? .{0,80}filepath=(\S{1,80}?)\.?$", "", "stop",
        "Keras wants the checkpoint's filepath to end in {0}: change {1} {at}, then launch_run again."),
    row(_ANY, r"Changing param values is not allowed\. Param with key='([^']{1,40})'", "", "stop",
        "MLflow has another {0} for this run: start a new run (or nested=True) instead of the old run_id {at}."),
    row(_ANY, r"(?i)RestException: RESOURCE_DOES_NOT_EXIST|No Experiment with id|MlflowException: .{0,60}not found", "",
        "stop", "MLflow has no such experiment or run: correct its name and MLFLOW_TRACKING_URI {at}, then launch_run "
        "again."),
)
# fmt: on
