"""Next steps after failures of configurations and programs."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

# First match wins: special before general.
# fmt: off
ROWS = (
    # --- configuration
    row("config_error", r"load_best_model_at_end", "", "stop",
        "Set eval_strategy and save_strategy to the same value, or load_best_model_at_end=false, then launch_run "
        "again."),
    row("", r"Target modules .{1,300}? not found in the base model", "", "stop",
        "The modules of {0} have other names: set target_modules to [\"query_key_value\"] (or 'all-linear'), then "
        "launch_run again.", log=r"(?i)\b(falcon|bloom|gpt[_-]?neox|pythia|chatglm|baichuan2?|RefinedWeb)"),
    row("", r"Target modules .{1,300}? not found in the base model", "", "stop",
        "The modules of {0} have other names: set target_modules to [\"c_attn\"] (or 'all-linear'), then launch_run "
        "again.", log=r"(?i)\b(gpt-?2|qwen-(?:1_8b|7b|14b|72b)|QWenLMHeadModel)\b"),
    row("", r"Target modules .{1,300}? not found in the base model", "", "stop",
        "The modules of {0} have other names: set target_modules to [\"qkv_proj\", \"o_proj\"] (or 'all-linear'), then "
        "launch_run again.", log=r"(?i)\b(phi-?3)"),
    row("", r"Target modules [\[{(]?['\"]?(.{1,80}?)['\"]?[\]})]? not found in the base model", "", "stop",
        "The model has no modules {0}: name its own in target_modules (or 'all-linear'), then launch_run again."),
    row("config_error data_error", r"(?m)yaml[\s\S]{0,400}?in \"([^\"\n]{1,200})\", line (\d+)", "", "stop",
        "Line {1} of {0} is not valid YAML: correct it, then launch_run again."),
    row("", r"JSONDecodeError: ([^\n:]{1,60}): line (\d+) column (\d+)", "", "stop",
        "The JSON read {at} is not valid ({0}, line {1}): correct or fetch that file again, then launch_run again."),
    row("python_error config_error", r"KeyError: '(LOCAL_RANK|RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'", "", "stop",
        "{0} is not set, which a launcher does: start with torchrun (or accelerate launch), then launch_run again."),
    row("python_error config_error", r"KeyError: '([A-Z][A-Z0-9]*_[A-Z0-9_]+)'", r"environ", "stop",
        "The variable {0} is not set: give it in launch_run's env (or secrets), then launch_run again."),
    row("config_error", r"(?:Could not find|No such) conda environment: (\S{1,60})", "", "stop",
        "There is no conda environment {0}: correct its name (`conda env list`) or create it, then launch_run again."),
    row("config_error", r"([\w./-]{1,60}): command not found", "", "stop",
        "{0} is not on this run's PATH: install it, give its whole path, or activate its environment first."),
    row("config_error", r"(?<![\w(])([A-Za-z_][\w ]{1,50}?) \(?(\d+)\)? (?:must be|is not) (?:evenly )?divisible by "
        r"(?:the )?([\w ]{2,50}?) \(?(\d+)\)? (?:times|x|\*) (?:the )?([\w ]{2,50}?) \(?(\d+)", "", "stop",
        "Set {0} ({1}) to a multiple of {2} x {4} ({3} x {5}), or change the number of GPUs, then launch_run again."),
    row("config_error", r"(?<![\w(])([A-Za-z_][\w ]{1,50}?) \(?(\d+)\)? (?:must be"
        r"|is not) (?:evenly )?divisible by (?:the )?([\w ]{2,50}?) \(?(\d+)",
        "", "stop", "Set {0} ({1}) to a multiple of {2} ({3}), or change that one, then launch_run again."),
    row("",
        r"\b(\w{1,80}) value from checkpoint \((\S{1,20}?)\) is not equal to the input argument value \((\S{1,20}?)\)",
        "", "stop",
        "The checkpoint has {0}={1}, this run {2}: set it to {1}, or start without the checkpoint, then launch_run "
        "again."),
    row("", r"world size of (\d+) but the current world size is (\d+)", "", "stop",
        "The checkpoint is of {0} ranks, this run has {1}: use {0} GPUs, or convert it (universal checkpoint, "
        "zero_to_fp32)."),
    row("", r"No valid checkpoint found in output directory \(?([^\s)]{1,120})", "", "stop",
        "{0} has no checkpoint: start without resume_from_checkpoint, or name the directory that has one."),
    row("config_error", r"unrecognized arguments: (.{1,60})", "", "stop",
     "The program does not know {0}: see its --help, then launch_run again."),
    row("config_error", r"arguments are required: (.{1,60})", "", "stop",
     "Give the missing arguments {0}, then launch_run again."),
    row("config_error", r"argument ([\w/-]{1,40}).{0,10}: (?:invalid|expected|not allowed)", "", "stop",
     "Correct the value of {0}: the line and --help say what is allowed, then launch_run again."),
    row("config_error", r"[Nn]o such option:? '?(-[\w-]{1,40})", "", "stop",
     "The program does not know {0}: see its --help, then launch_run again."),
    row("config_error", r"[Kk]ey '([^']{1,40})' is not in struct", "", "stop",
     "The configuration has no key {0}: correct its name, or add it with +{0}=..."),
    row("config_error", r"Missing mandatory value: ?([\w.]{1,60})", "", "stop", "Give {0} a value first."),
    row("config_error", r"Could not override '([^']{1,60})'", "", "stop",
     "The configuration has no {0}: correct its name, or add it with +{0}=...; HYDRA_FULL_ERROR=1 shows more."),
    row("config_error", r"Could not override '([^']{1,110})'", "", "stop",
     "The configuration has no {0}: drop that override or correct its name."),
    row("config_error",
     r"(?:mismatched|extraneous) input|no viable alternative|NoViableAlt|OverrideParseException|token recognition", "",
     "stop", "Hydra cannot read an override: quote its value, e.g. 'key=\"a=b\"'; HYDRA_FULL_ERROR=1 shows more."),
    row("config_error", r"Error in call to target|InstantiationException|Error locating target", "", "stop",
     "Hydra cannot build an object of the configuration: correct it; HYDRA_FULL_ERROR=1 in env shows why."),
    row("config_error", r"In '[^']{0,80}': Could not find '([^']{1,60})'", "", "stop",
     "There is no configuration {0}: correct the name to one that Hydra lists, then launch_run again."),
    row("config_error", r"(?i)\b(?:no|not|n't|only|requires?) .{0,60}\bb(?:float|f)16|\bb(?:float|f)16\b.{0,60}"
        r"\b(?:not|only|"
        r"requires?)\b", "", "stop",
     "This GPU or build has no bf16: set fp16=true (or bf16=false), then launch_run again."),
    row("python_error config_error", r"(?:User-specified )?(?<!\w)([A-Za-z][\w .`'-]{1,40}?) \(?(\d+)\)? is (?:greater"
        r"|larger|more) than (?:the )?(?:derived )?([\w.`'-]{2,40}) \(?\D{0,60}?(\d+)",
        "", "stop", "Lower {0} ({1}), or raise {2} ({3}) if the model and the memory allow it, then launch_run again."),
    row("config_error", r"(?m)validation errors? for (\w+)\n\s*([\w.]{1,60})\n\s*([^\n\[]{1,90})", "", "stop",
        "{0}.{1}: {2}; correct that value in the configuration, then launch_run again."),
    row("",
        r"\[?'([\w, ']{1,60}?)'?\]? not in the dataset\. Current columns in the data"
        r"set: \[([^\]]{1,90})", "",
        "stop", "The data has no column {0}, but {1}: correct the name {at}, then launch_run again."),
    row("", r"Dataset scripts are no longer supported", "", "stop",
        "This datasets version runs no scripts: install datasets<4, or load a Parquet copy of the data, then "
        "launch_run again."),
    row("", r"EOFError: EOF when reading a line", "", "stop",
        "The program asks a question that nobody answers: answer it by an option or variable (Isaac: "
        "OMNI_KIT_ACCEPT_EULA=YES)."),
    row("", r"mjWARN_BAD|NaN in q(?:acc|pos|vel)|Physics state is invalid|PhysicsError|simulation (?:is "
        r"|became )?unstable", "",
        "stop", "The simulation became unstable: lower its timestep or clip the actions, or end the episode on this "
        "error "
        "{at}."),
    row("", r"Inconsistent compute device", "", "stop",
        "Each rank needs its own GPU first: torch.cuda.set_device(LOCAL_RANK) before the model is wrapped {at}."),
    row("config_error",
        r"(?m)You requested gpus?: \[([\d, ]+)\]\s+(?:\d+:\s+)?But your machine only has: \[([\d, ]*)\]",
        r"(?:srun|slurmstepd\S*): ", "stop",
        "Devices {0} were asked for and a task of srun sees {1}: give it all (--gpus-per-node or --gres, not "
        "--gpus-per-task), or lower devices."),
    row("config_error",
        r"(?m)You requested gpus?: \[([\d, ]+)\]\s+(?:\d+:\s+)?But your machine only has: \[([\d, ]*)\]", "",
        "stop",
        "Devices {0} were asked for and only {1} are there: lower devices (trainer.devices), or launch_run with more "
        "gpus."),
    row("config_error", r"'?([\w.-]{1,60})'? is not a valid (\w{2,40})", "", "stop",
        "{0} is not a value of {1}: choose one that the installed version knows, then launch_run again."),
    row("config_error", r"'(?:Namespace"
        r"|SimpleNamespace)' object has no attribute '(\w+)'. Did you mean: '(\w+)'", "", "stop",
        "The program's arguments have no {0}: add the option, or use {1} {at}, then launch_run again."),
    row("config_error", r"'(?:Namespace|SimpleNamespace|DictConfig|ConfigDict|EasyDict"
        r"|AttrDict)' object has no attribute "
        r"'(\w+)'", "", "stop", "The configuration has no {0}: add it, or correct the name {at}, then launch_run "
        "again."),
    row("config_error", r"(?i)batch.{0,60}(?:divisible|multiple|check batch)|check batch related|divisible.{0,60}batch",
     "", "stop",
     "The batch sizes do not fit together: make the total a multiple of micro batch times GPUs, then launch_run "
     "again."),
    row("", r"(?i)world.?size.{0,40}(?:not )?divisible", "", "stop",
     "The parallel sizes do not fit: their product (tensor, pipeline, context) must divide the number of GPUs."),
    row("config_error", r"KeyError: '([^']{1,40})'", "", "stop",
     "The configuration lacks {0}: add it, then launch_run again."),
    # --- errors of the program
    row("python_error data_error config_error", r"(?m)size mismatch for \S*(?:embed_tokens|lm_head|wte"
        r"|word_embeddings)\S*: "
        r"copying a param with shape torch\.Size\(\[(\d+), \d+\]\) from checkpoint, the shape in current model is "
        r"torch\.Size\(\[(\d+), ", r"(?s)\A(?!.*size mismatch for (?!\S*(?:embed_tokens|lm_head|wte|word_embeddings)))",
        "stop",
        "Only the vocabulary differs: model.resize_token_embeddings({0}) before loading, or the checkpoint's "
        "tokenizer."),
    row("python_error data_error config_error",
        r"(?m)size mismatch for \S*(?:classifier|score|fc"
        r"|head)\S*: copying a param with shape torch\.Size\(\[(\d+)[^\]]*\]\) "
        r"from checkpoint, the shape in current model is torch\.Size\(\[(\d+)", "", "stop",
        "The checkpoint has {0} classes, the model {1}: set num_classes (num_labels) to {0}, or load all but its head "
        "(ignore_mismatched_sizes in transformers)."),
    row("python_error data_error config_error",
     r"size mismatch for|loading state_dict|[Uu]nexpected key\(s\)|state dict keys do not match"
        r"|[Pp]y[Tt]ree structure|[Mm]issing key(?:\(s\)| in checkpoint)", "", "stop",
     "The checkpoint is of another model or observation size: use the configuration it was trained with, or start "
     "without it."),
    row("python_error",
     r"Observation spaces do not match|Action spaces do not match|observation_space.{0,40}(?:mismatch|differ)", "",
     "stop",
     "The checkpoint is of another observation or action size: use the task it was trained on, or start without it."),
    row("python_error", r"invalid literal for int\(\) with base 10: '(?:GPU|MIG)-", "", "stop",
     "The program takes GPUs by index: launch_run with env CUDA_VISIBLE_DEVICES={{gpu_indices}}."),
    row("", r"does not have a padding token", "", "stop",
     "The tokenizer has no padding token: set tokenizer.pad_token = tokenizer.eos_token, then launch_run again."),
    row("", r"chat_template is not set", "", "stop",
     "The tokenizer has no chat template: use the instruct model's, or give a chat_template, then launch_run again."),
    row("", r"Detected mismatch between collectives", "", "stop",
        "The ranks run different code: let each call the same collectives (blocks of rank 0 alone, uneven batches), "
        "then "
        "launch_run again."),
    row("", r"parameter group that doesn't match|different number of parameter groups", "", "stop",
        "The optimizer's state is of other parameters: load the weights alone, or train the same parameters as "
        "before."),
    row("", r"unsupported operand type\(s\) for \|: '?(?:type|NoneType|_?Generic)", "", "stop",
        "The code needs Python 3.10 or newer: use such an environment, then launch_run again."),
    row("", r"dubious ownership in repository at '([^']{1,100})'", "", "stop",
        "git distrusts this directory: run `git config --global --add safe.directory {0}`, then launch_run again."),
    row("python_error", r"(?:[Cc]an't|[Cc]annot) pickle (?:local object|<function|.{0,40}lambda)", "", "stop",
        "A local function cannot be sent to a process: define it at module level {at}, then launch_run again."),
    row("python_error", r"unpack \(expected 5, got 4\)", r"env\w*(?:\[\w+\])?\.step\(", "stop",
        "The env has the old gym API: let its step return obs, reward, terminated, truncated, info (reset: obs, info), "
        "or wrap it with shimmy."),
    row("python_error", r"too many values to unpack \(expected 4", r"env\w*(?:\[\w+\])?\.step\(", "stop",
        "The env is gymnasium's: take five values of step (obs, reward, terminated, truncated, info), two of reset, "
        "{at}."),
    row("python_error", r"unpack", r"env\w*\.(?:reset|step)\(", "stop",
        "gymnasium returns (obs, info) and five values of step, gym did not: align the package with the code {at}."),
    row("", r"not contained within .{0,20}observation space|outside .{0,30}observation space", "", "stop",
        "An observation does not fit observation_space {at}: correct the dtype, bounds or shape of the space, then "
        "launch_run "
        "again."),
    row("", r"not positive[- ]definite|singular (?:matrix|input)|LinAlgError", "", "stop",
        "A matrix is singular or not positive-definite {at}: add damping to its diagonal, or use float64."),
    row("", r"can't train a model that has been loaded in .{0,30}(?:8|4)[- ]?bit.{0,60}different device", "", "stop",
        "Load the model on each rank's own GPU: device_map={{'': local_rank}} in from_pretrained, not \"auto\"."),
    row("python_error", r"torch\.compile with fullgraph=True|torch\._dynamo|Unsupported: |InternalTorchDynamoError|"
        r"BackendCompilerFailed|InductorError|LoweringException", "", "stop",
        "torch.compile fails here: turn it off (compile=false, or TORCHDYNAMO_DISABLE=1 in env), then launch_run "
        "again."),
    row("python_error other", r"TimeoutExpired: .{0,200}timed out after ([\d.]+) seconds", "", "stop",
        "A command took more than {0} s: catch TimeoutExpired {at}, or raise its timeout, then launch_run again."),
    row("python_error", r"Cannot re-initialize CUDA in forked subprocess", "", "stop",
     "CUDA was used before a fork: keep CUDA out of the Dataset, or use multiprocessing_context='spawn' (or "
     "num_workers=0)."),
    row("python_error", r"context has already been set", "", "stop",
        "The start method is set twice: call set_start_method once, under if __name__ == '__main__', or with "
        "force=True "
        "{at}."),
    row("python_error", r"bootstrapping phase|freeze_support", "", "stop",
     "A process starts while the module is imported: put the start under if __name__ == '__main__', then "
     "launch_run again."),
    row("python_error", r"Expected all tensors to be on the same device", "", "stop",
     "Tensors are on different devices: move the one {at} with .to(device), then launch_run again."),
    row("python_error", r"modified by an inplace operation", "", "stop",
     "An in-place operation spoils the gradient: set_detect_anomaly(True) shows which; then launch_run again."),
    row("python_error", r"longer than the (?:specified )?maximum|too long for context|maximum context length"
        r"|max_position_embeddings"
     r"|exceeds? .{0,40}(?:context|sequence) length", "", "stop",
     "An input is longer than the model allows: truncate it or lower max_length, then launch_run again."),
    row("", r"^(?:FAILED|ERROR) (\S{1,80}\.py\S{0,60})", "", "stop",
     "The test {0} fails: correct the code or the test, then launch_run again."),
)

# For what no other row and no remedy in the message names.
GENERAL_ROWS = (
    row("python_error config_error", r"unexpected keyword argument\W{1,3}(\w+)",
        r"full_key|Error in call to target", "stop",
        "The configuration passes {0}, which the object does not take: correct the name; HYDRA_FULL_ERROR=1 shows "
        "more."),
    row("config_error", r"AttributeError: (?:'(\w+)'|type) object.{0,20} has no attribute '(\w+)'", "", "stop",
        "{0} has no {1}: correct the name {at} or in the configuration, then launch_run again."),
    row("python_error", r"module 'numpy' has no attribute '(\w+)'", "", "stop",
        "This NumPy has no {0}: install numpy<1.24 (np.float, np.int, np.bool) or numpy<2 (others), or update what "
        "uses it "
        "{at}."),
    row("python_error", r"module '([\w.]+)' has no attribute '(\w+)'", "", "stop",
        "{0} has no {1} in this version, but it is used {at}: align the version or the code, then launch_run again."),
    row("python_error", r"'NoneType' object has no", "", "stop",
        "A value is None {at}, in `{source}`: find what should have set it, then launch_run again."),
    row("python_error", r"'NoneType' object|NoneType has no", "", "stop",
        "A value is None {at}: find what should have set it, then launch_run again."),
    row("python_error", r"'(\w+)' object has no attribute '(\w+)'", "", "stop",
        "{0} has no {1}: correct the name {at}, or align the version of its package, then launch_run again."),
    row("python_error", r"(?:name|variable) '(\w+)' (?:is not defined|where it is not|referenced before)", "", "stop",
        "{0} has no value: import it or set it before its use {at}, then launch_run again."),
    row("python_error", r"KeyError: ['\"]?([^'\"\n]{1,60})", "", "stop",
        "There is no key {0}: correct the name {at}, or what should have written it, then launch_run again."),
    row("python_error", r"unexpected keyword argument '(\w+)'", "", "stop",
        "The call {at} passes {0}, which it does not take: correct the name or remove it, or align the package's "
        "version."),
    row("python_error", r"missing \d+ required (?:\S+ )?arguments?: (.{1,60})", "", "stop",
        "The call {at} lacks {0}: pass it, then launch_run again."),
    row("python_error", r"(?i:does not require grad)", "", "stop",
        "The loss {at} depends on no trainable parameter: unfreeze some, or drop a no_grad or detach, then launch_run "
        "again."),
    row("python_error", r"backward through the graph a second time", "", "stop",
        "A graph is used twice {at}: detach what is kept between steps, or pass retain_graph=True, then launch_run "
        "again."),
    row("python_error", r"index (-?\d+) is out of bounds for (?:dimension|axis) \d+ with size (\d+)", "", "stop",
        "Index {0} is used {at} where there are only {1}: correct the index or the size there, then launch_run again."),
    row("python_error", r"(?m)(?i:expected (?:scalar type|m1 and m2)|(?:be|have) (?:the )?same (?:d?type|data type)"
        r"|dtypes?\b.{0,60}(?:but|match|differ|!=)"
        r"|not implemented for '(?:Half|BFloat16|Long|Int|Byte|Bool)|should be the same|Input type \()", "", "stop",
        "Data types or devices differ {at}: cast the input or the model there (.to(...) or autocast), then launch_run "
        "again."),
    row("python_error", r"^[\w.]{1,80}: (?=.{0,300}\d)"
        r"(?=.{0,300}(?i:\bshapes?\b|\bdimensions?\b|\bsizes?\b))(.{8,300})",
        "", "stop",
        "The shapes do not fit {at}: \"{0}\"; print both (.shape) there and make them equal."),
    row("python_error", r"(?m)(?i:\bshapes?\b|size of tensor|mat1 and mat2|sizes? (?:of tensors )?must match"
        r"|dimensions?\b"
        r"|batch_size \(\d|broadcast|inhomogeneous|inconsistent (?:sizes|shapes)|cannot reshape"
        r"|invalid for input of size|stack expects|size mismatch"
        r"|not aligned|channels, but got|target size|got torch\.Size|input of size)", "", "stop",
        "The shapes do not fit {at}: the line names them; correct the one that is wrong there, then launch_run again."),
    row("python_error", r"unpack", "", "stop",
        "The value unpacked {at} has another length: correct either side, then launch_run again."),
    row("python_error", r"IndexError|index \d* ?(?:is )?out of|out of range", "", "stop",
        "An index is out of range {at}: check the length there, or for an empty list, then launch_run again."),
    row("python_error", r"ZeroDivisionError", "", "stop",
        "A division by zero {at}: often an empty dataset or loader; check its length, then launch_run again."),
    row("python_error", r"SyntaxError|IndentationError|TabError", "", "stop",
        "Python cannot read the code {at}: correct its syntax, then launch_run again."),
    row("python_error", r"NotImplementedError", "", "stop",
        "The code {at} is not implemented for this case: choose a setting that it knows, or write it."),
    row("python_error other", r"(?i)\bis (?:still )?(?:loading|starting|warming up|busy)\b|BusyLoading|not ready yet"
        r"|(?<!resource )temporarily unavailable|try again later", "", "retry_later",
        "The other side is not ready yet: retry later, and wait for it {at} before the first call."),
    row("python_error", r"^[\w.]*Timeout\w*: (.{4,200})|^[\w.]+: (.{0,200}(?i:timed out).{0,100})", "", "retry_changed",
        "No answer in time {at} ({0}{1}): raise that timeout, and look above for what made the other side late."),
    row("python_error", r"(?i)\b(?:server|engine|workers?|sub-?process|process(?:es)?|simulator|environment)\b.{0,60}"
        r"\b(?:terminated|died|exited|crashed|failed to start|not (?:ready|healthy|alive))", "", "stop",
        "A process that it had started ended: that one's own last lines, above, name the cause; correct that, then "
        "launch_run again."),
    row("python_error config_error", r"AssertionError: (.{8,400})", "", "stop",
        "The check {at} fails: \"{0}\"; correct that, then launch_run again."),
    row("python_error config_error", r"AssertionError\W*$", r"(?m)^\W*assert\b", "stop",
        "A check fails {at}: {source}; make it true by the settings or the code, then launch_run again."),
    row("python_error", r"AssertionError", "", "stop",
        "The check {at} fails: see what it demands, correct the settings or the code, then launch_run again."),
    row("python_error", r"(?:ValueError|RuntimeError|TypeError|Error|Exception)\b:? (.{8,400})", "", "stop",
        "{library}, called {at}, says: \"{0}\"; correct what it gets there, then launch_run again."),
    row("python_error", r"(?:ValueError|RuntimeError|TypeError|Exception)\b", "", "stop",
        "{library} refuses what it got {at}: correct the values or settings passed there as the line says, then "
        "launch_run "
        "again."),
    row("python_error", r"^[\w.]{1,80}: (.{8,400})", "", "stop",
        "The error {at}: \"{0}\"; correct that, then launch_run again."),
    row("python_error", "", "", "stop", "The program has an error {at}: correct it there, then launch_run again."),
    row("config_error", r"AssertionError", "", "stop",
        "The check {at} refuses the settings: make them fit what the line demands, then launch_run again."),
    row("config_error", r"^(?:[\w.]{1,80}: )?(.{8,400})", "", "stop",
        "Refused {at}: \"{0}\"; correct that setting, then launch_run again."),
    row("data_error", r"(?<![\w:/.])((?:/|~/|\.{1,2}/)[\w.@+-]+(?:/[\w.@+-]+)+)", "", "stop",
        "{0} is not as expected {at}: correct that path, or what should be there, then launch_run again."),
    row("data_error", r"^[\w.]{1,80}: (.{8,400})", "", "stop",
        "Data {at}: \"{0}\"; correct the path or the file, then launch_run again."),
    row("import_error", r"^[\w.]{1,80}: (.{8,400})", "", "stop",
        "The environment does not fit: \"{0}\"; install or align that package, then launch_run again."),
    row("other", r"^(?:[\w./-]{1,60}: )?\W{0,3}(?i:fatal|error)\b\W{1,6}(.{10,400})", "", "stop",
        "The last error says: \"{0}\"; correct that first, then launch_run again."),
)
# fmt: on
