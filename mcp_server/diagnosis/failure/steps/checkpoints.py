"""Next steps after failures of checkpoints and weights: what a file really holds, and what fits the model."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

_LOADS = "python_error data_error config_error"
_LOADED_BY_LIBRARY = (
    r"site-packages[/\\](?:lightning|pytorch_lightning|transformers|ultralytics|accelerate|fairseq)[/\\]"
)
_REFUSED_CLASS = r"Unsupported (?:global|class|operand)\w*:? (?:GLOBAL |class )?(\w[\w.]{0,80}?)\.(\w{1,60})(?![\w.])"
# First match wins: special before general.
# fmt: off
ROWS = (
    row(_LOADS, r"Device \S{1,40} was not found in jax\.(?:local_)?devices", "", "stop",
        "The checkpoint was written on more devices: restore it with this mesh's shardings "
        "(StandardRestore(abstract_state)), or use as many."),
    row(_LOADS, r"size of the list and the state dict do not match.{0,60}? at path (\S{1,60})", "", "stop",
        "The checkpoint's {0} has another structure: restore with the optax chain and model that saved it, or the "
        "params alone."),
    row(_LOADS, r"size of the list and the state dict do not match|target dict keys and state dict keys do not match",
        "", "stop",
        "The checkpoint has another structure: restore with the model and optax chain that saved it, or the params "
        "alone."),
    row(_LOADS,
        r"(?m)size mismatch for \S*(?:lora|adapter)\S*: copying a param with shape torch\.Size\(\[(\d+), \d+\]\) f"
        r"rom checkpoint, the shape in current model is torch\.Size\(\[(\d+), ", "", "stop",
        "The adapter has rank {0}, this configuration {1}: set r (lora_rank) to {0}, or start without it, then "
        "launch_run again."),
    row(_LOADS, r"(?m)size mismatch for \S*(?:pos_?emb|position_?emb|wpe|relative_position"
        r"|rel_pos)\S*: copying a param with shape torch\.Size\(\[([\d, ]+)\]\) from checkpoint, the shape in curr"
        r"ent model is torch\.Size\(\[([\d, ]+)\]", "", "stop",
        "The checkpoint is of another image size or length ([{0}], here [{1}]): set img_size (max positions) "
        "to its own, or interpolate."),
    row(_LOADS, r"no file named (\S{1,80}?),? (?:or .{1,80} )?found in directory (\S{1,120}?)\.?$", "", "stop",
        "{1} has no {0}: it may hold a variant (variant='fp16', use_safetensors=True); else fetch the whole model."),
    row("", r"invalid load key, '<'", "", "stop",
        "The file is a web page (HTML), not weights: the download was refused; fetch it again with its right link or "
        "token."),
    row("", r"invalid load key, 'v'|HeaderTooLarge|invalid load key, '\\x0a'|version https://git-lfs", "", "stop",
        "The file is likely a git-LFS pointer of 130 bytes: run `git lfs pull` (or hf download), or fetch it again if "
        "it is large."),
    row("", r"invalid load key, '(?:\{|\\x\w\w|.)'", "", "stop",
        "The file is not what torch.load reads (another format, or damaged): see `file` on it; fetch or convert it "
        "{at}."),
    row("", r"Weights only load failed", _LOADED_BY_LIBRARY, "stop",
        "torch refuses {0}.{1}: torch.serialization.add_safe_globals([{1}]), or (if trusted) "
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in env.", log=_REFUSED_CLASS),
    row("", r"Weights only load failed", r"transformers[/\\]|accelerate[/\\]|lightning[/\\]", "stop",
        "torch.load refuses {0}.{1}: upgrade the library that loads it, or (if trusted) "
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in env.", log=_REFUSED_CLASS),
    row("", r"Weights only load failed", "", "stop",
        "torch.load refuses {0}.{1}: torch.serialization.add_safe_globals([{1}]), or weights_only=False if trusted, "
        "{at}.",
        log=_REFUSED_CLASS),
    row("", r"Weights only load failed", _LOADED_BY_LIBRARY, "stop",
        "torch.load refuses classes in the file: TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in env if its source is trusted, "
        "then "
        "launch_run again."),
    row("", r"Weights only load failed", "", "stop",
        "torch.load refuses code in the file: pass weights_only=False {at} if its source is trusted, then launch_run "
        "again."),
    row("", r"did not match any variant of untagged enum (\w+)", "", "stop",
        "A newer tokenizers wrote this tokenizer.json: pip install -U tokenizers transformers in this environment, "
        "then launch_run again."),
    row("", r"(?i)vulnerability .{0,60}torch\.load|require users to upgrade torch to at least v?2\.6", "", "stop",
        "transformers refuses torch.load below torch 2.6: upgrade torch, or use the model's safetensors files."),
    row(_LOADS,
        r"Size mismatch between saved torch\.Size\(\[([\d, ]+)\]\) and current: torch\.Size\(\[([\d, ]+)\]\) for ("
        r"\S{1,80})", "", "stop",
        "{2} is [{0}] in the checkpoint, [{1}] in this model: use the settings it was saved with (vocabulary, "
        "sizes)."),
    row(_LOADS, r"Missing key in checkpoint state_dict: (\S*optim\S*)", "", "stop",
        "The checkpoint lacks {0}: load the model alone, or save with the same optimizer."),
    row(_LOADS, r"Missing key in checkpoint state_dict: (\S{1,90})", "", "stop",
        "The checkpoint lacks {0}: load only what it has (the same names and parallel settings), then "
        "launch_run again."),
    row(_LOADS, r"KeyError: '(state_dict|model|model_state_dict|optimizer\w*|epoch|ema\w*|net|scheduler\w*"
        r"|hyper_parameters)'", r"(?i)torch\.load|checkpoint|ckpt|load_state_dict|resume", "stop",
        "The loaded file has no {0}: print its keys() {at} and use those, or load the file this program wrote."),
    row(_LOADS,
        r"No such (?:key|entry).{0,40}|not a valid checkpoint: (\S{1,100})|[Cc]heckpoint .{0,60}is not complete", "",
        "stop", "The checkpoint is not complete: resume from the one before it, then launch_run again."),
    row(_LOADS, r"argument 'input' \(position 1\) must be Tensor, not OrderedDict"
        r"|'(?:collections\.)?OrderedDict' object has no attribute '(?:eval|to|cuda|parameters)'"
        r"|'dict' object has no attribute '(?:eval|to|parameters|state_dict)'", "", "stop",
        "torch.load gave a state_dict, not a model: build the model and call load_state_dict on it {at}."),
    row(_LOADS, r"Expected state_dict to be dict-like, got <class '([\w.]{1,60})'", "", "stop",
        "The file holds a whole {0}, not a state_dict: pass its .state_dict() {at}, then launch_run again."),
    row(_LOADS, r"Can't get attribute '(\w+)' on <module '([\w.]+)'", "", "stop",
        "The pickle needs class {0} in module {1}: import or define it there first, as where it was saved, then "
        "launch_run again."),
    row(_LOADS,
        r"state_dict.{0,40}different number of parameter groups|loaded state dict (?:has|contains) a (?:different"
        r"|param)", "", "stop",
        "The optimizer's state is of other parameters: load the weights alone, or train the same parameters as "
        "before."),
    row(_LOADS, r"(?:does not contain|no file named|any of) .{0,80}(?:pytorch_model|model\.safetensors|adapter_config|"
        r"adapter_model|config\.json)|Can't find '?adapter_config\.json'? at '?([^'\s]{1,120})", "", "stop",
        "That directory has no such model file (an adapter alone has adapter_config.json): name the directory that has "
        "it."),
)
# fmt: on
