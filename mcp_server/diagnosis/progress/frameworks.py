"""Formats in which training frameworks print a step: one row per format. Pure.

`needle` is a literal that every line of the format contains; the pattern is tried only on lines with it. Its groups:

- `step`, `total`: steps so far (iterations, updates, frames: the framework's unit), and their total
- `epoch`, `epochs`: the epoch, and their total (`last`: the number of the last epoch); `n`, `per`: the position in that
  epoch, and its length
- `skipped`: steps without an update; `s`, `ms`, `rate`: seconds or milliseconds per step, steps per second

A format without any of them shows only that a step was made. Whether a line matches does not depend on its digits.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

from mcp_server.text.regex import compile_lazily


class Rank(IntEnum):
    """Reliability of a step counter: one of higher rank takes the lead, and lower ones then change nothing."""

    NONE = 0  # training is over; no count
    LOSS = 1  # losses without a counter: each new value is a sign of life
    EPOCH = 2  # custom loop, epochs
    UNLABELLED = 3  # a progress bar that does not say what it shows
    STEP = 4  # custom loop, steps
    BAR = 5  # a training progress bar
    SECONDARY = 6  # a framework's second counter, in another unit than its first
    FRAMEWORK = 7
    USER = 8  # the user's own pattern


class StepFormat(NamedTuple):
    """One format in which a framework prints a step.

    ``zero``: a printed step 0 is a finished step. ``base``: the number of the first epoch, None where that varies.
    ``adds``: ``skipped`` counts since the last line, not since the start. ``always``: each line is a step, also without
    a number.
    """

    name: str
    needle: str
    pattern: re.Pattern[str]
    rank: Rank = Rank.FRAMEWORK
    zero: bool = False
    base: int | None = None
    adds: bool = False
    always: bool = False


def _row(
    name: str,
    needle: str,
    pattern: str,
    rank: Rank = Rank.FRAMEWORK,
    *,
    zero: bool = False,
    base: int | None = None,
    adds: bool = False,
    always: bool = False,
) -> StepFormat:
    return StepFormat(name, needle, compile_lazily(pattern), rank, zero, base, adds, always)


_STEP = r"(?P<step>\d+)"
_STEP_OF = r"(?P<step>\d+)/\s*(?P<total>\d+)"
_N_OF = r"(?P<n>\d+) ?/ ?(?P<per>\d+)"
_EPOCH_OF = r"(?P<epoch>\d+)(?: ?/ ?(?P<epochs>\d+))?"
# Epoch: [0][ 10/500], Epoch: [0/100]  [ 10/500], Train: 0 [ 50/1251 (4%)], Train Epoch: 1 [640/60000 (1%)]
_POSITION = rf"\s{{0,4}}:?\s{{0,4}}\[?\s{{0,4}}{_EPOCH_OF}\s{{0,4}}\]?\s{{0,4}}:?\s{{0,4}}[\[(]\s{{0,6}}{_N_OF}\b"
_TIME = r"(?:.{0,400}?\btime:? {0,3}(?P<s>\d{1,2}\.\d+))?"  # a longer time is the time since the start
_LATER = r".{0,600}?"  # bounded: a line may be anything
_ENDED = r"(?P<epoch>\d+)(?: ?(?:/|of) ?(?P<epochs>\d+))?[:,]? (?:is |has )?(?:finished|done|completed?|took|ended)\b"
_MEASURE = r"(?i:loss|reward|return|accuracy|损失|奖励)"

# fmt: off
# First match wins. Within a framework, the line printed once per step precedes its other lines.
STEP_FORMATS: tuple[StepFormat, ...] = (
    # language models
    _row("hf_trainer", "'epoch'", r"\{'(?!eval|val|test)[^{}]{0,999}?(?:loss|reward)[\w/]{0,40}': '?(?:[-\d.]|nan|inf)"
         r"[^{}]{0,999}'epoch': "),
    _row("hf_trainer", "'train_runtime'", r"'train_runtime'"),
    _row("nemo", "iteration ", rf"\bTraining epoch \d+, iteration {_STEP_OF} \|"
         rf"(?:{_LATER}train_step_timing in s: (?P<s>[\d.]+))?", zero=True),
    _row("megatron", "iteration", rf"\biteration\s+{_STEP_OF} \|(?:{_LATER}time per iteration \(ms\): (?P<ms>[\d.]+))?"
         rf"(?:{_LATER}number of skipped iterations:\s+(?P<skipped>\d+))?", adds=True),
    _row("deepspeed", "skipped=", rf"\bstep={_STEP}, skipped=(?P<skipped>\d+)"),
    _row("deepspeed", "/global_step=", rf"/global_step={_STEP}"),
    _row("torchtitan", "step:", rf"\bstep:\s+{_STEP}\s+loss:"),
    _row("verl", "step:", rf"(?:^|\s)step:{_STEP} - "),
    _row("modded-nanogpt", "step:", rf"\bstep:{_STEP_OF} (?:train_time|\w*loss)(?:{_LATER}step_avg:(?P<ms>[\d.]+)ms)?"),
    _row("nanogpt", "iter ", rf"\biter {_STEP}: loss (?:[\d.]|nan)(?:{_LATER}time (?P<ms>[\d.]+) ?ms)?", zero=True),
    _row("nanochat", "| loss", rf"\bstep {_STEP}(?:/(?P<total>\d+))? \([\d.]+%\) \| loss"
         rf"(?:{_LATER}dt: (?P<ms>[\d.]+)ms)?", zero=True),
    _row("llama2.c", "| loss ", rf"^\s*{_STEP} \| loss \S+(?:{_LATER}(?P<ms>\d+\.\d+)ms)?", zero=True),
    _row("llm.c", "loss ", rf"^\s*step\s+{_STEP_OF} \|(?:{_LATER}(?P<ms>\d+\.\d+) ms)?"),
    _row("maxtext", "completed step: ", rf"\bcompleted step: {_STEP}, seconds: (?P<s>[\d.]+)", zero=True),
    _row("openpi", "Step ", rf"(?:^|\s)Step {_STEP}: \w+=", zero=True),
    _row("openpi", "Progress on:", r"Progress on:\s?(?:\w+ )?(?P<step>[\d.]+[kM]?)it/(?P<total>[\d.]+[kM]?)it "
         r"rate:(?:(?P<rate>[\d.]+)it/s|(?P<s>[\d.]+)s/it)?", Rank.BAR),
    _row("litgpt", " step ", rf"\biter \d+ step {_STEP}\s*[|:](?:{_LATER}iter time: (?P<ms>[\d.]+) ms)?"),
    _row("torchtune", "|Loss: ", rf"\b\d+\|{_STEP}\|Loss: "),
    _row("composer", "[batch=", rf"\[batch={_STEP}(?:/(?P<total>\d+))?\]"),
    _row("llama_factory", '"current_steps"', rf'"current_steps": {_STEP}, "total_steps": (?P<total>\d+)'),
    _row("areal", "rain step ", rf"\bTrain step {_STEP_OF} done"),
    _row("slime", "step ", rf"\bstep {_STEP}: \{{'train/", zero=True),
    _row("openrlhf", "Global step ", rf"\bGlobal step {_STEP}"),
    _row("rlinf", "Global Step:", rf"\bGlobal Step:\s+{_STEP_OF}"),
    _row("fairseq", "num_updates", rf"\bnum_updates['\"]?:? ['\"]?{_STEP}"),
    _row("fairseq", "loss=", r"\bepoch (?P<epoch>\d+):\s+(?P<n>\d+) / (?P<per>\d+) loss=", base=1),
    _row("espnet", "epoch:train:", r"\b(?P<epoch>\d+)epoch:train:\d+-(?P<n>\d+)batch:", base=1),
    _row("opennmt", "Step ", rf"\bStep {_STEP_OF};"),
    _row("marian", " Up. ", rf"\bEp\. \d+ : Up\. {_STEP} :"),
    _row("flair", " - iter ", rf"\bepoch (?P<epoch>\d+) - iter {_N_OF} - loss", base=1),
    _row("t5x", "Training: step", rf"\bTraining: step {_STEP}\s*$"),
    _row("flax", "Step... (", rf"\bStep\.\.\. \({_STEP}(?:/(?P<total>\d+))? \| Loss"),
    # reinforcement learning
    _row("rsl_rl", "Learning iteration", rf"Learning iteration\s+{_STEP_OF}", zero=True),
    _row("rl_games", "fps total:", rf"fps total: [\d.]+ epoch: {_STEP}(?:/(?P<total>\d+))?"),
    _row("stable_baselines3", "total", r"[|│]\s*+(?:\w+/)?+\s*+total[_ ]timesteps\s*+[|│]\s*+(?P<step>\d[\d,]*)"),
    _row("stable_baselines3", "pdates", r"[|│]\s*+(?:\w+/)?+n_?updates\s*+[|│]\s*+(?P<step>\d[\d,]*)", Rank.SECONDARY),
    _row("guided_diffusion", "| step ", r"\| step\s+\| (?P<step>\d[\d.e+]*)\s+\|"),
    _row("cleanrl", "global", rf"\bglobal[_ ]step ?[=:] ?{_STEP}\b(?!, (?:lr|epoch|batch))"),
    _row("habitat", "update: ", rf"\bupdate: {_STEP}\s+fps:", zero=True),
    _row("habitat", "Num updates: ", rf"\bNum updates: {_STEP}\s+Num frames"),
    _row("a2c_ppo", "num timesteps", rf"\bUpdates? {_STEP}, num timesteps", zero=True),
    _row("ml_agents", "Time Elapsed", rf"\bStep: {_STEP}\. Time Elapsed"),
    _row("drq", "| train", rf"\| train\s*\|.{{0,99}}?\b[FS]: {_STEP}"),
    _row("td_mpc2", "train ", r"\btrain +E: [\d,]+ +I: (?P<step>[\d,]+)"),
    _row("acme", "Learner Steps", rf"\bLearner Steps = {_STEP}"),
    _row("rllib", "training_iteration", rf"\btraining_iteration['\"]?: {_STEP}"),
    _row("rllib", "finished iteration ", rf"\b(?:Trial \S+|Training) finished iteration {_STEP} at "),
    _row("tune", " reported ", r"\bTrial \S+ reported (?=[\w/.-]+=)(?:.{0,600}?(?<!\w)(?:global_|train_)?"
         r"(?:(?:training_)?iteration|iter|step|num_env_steps_sampled_lifetime|timesteps_total)=(?P<step>\d+)\b"
         r"|.{0,600}?(?<!\w)epoch=(?P<epoch>\d+)\b)?", zero=True, always=True),
    _row("mujoco_playground", "reward", rf"^\s*{_STEP}: reward ?[=:]", Rank.STEP),
    _row("dreamer", "─ Step ", r"─ Step (?P<step>\d[\d_,]*) ─"),
    # vision and speech
    _row("mmengine", "(train)", rf"Epoch\(train\)\s*\[(?P<epoch>\d+)\]\[\s*{_N_OF}\]{_TIME}", base=1),
    _row("mmengine", "(train)", rf"Iter\(train\)\s*\[\s*{_STEP_OF}\]{_TIME}"),
    _row("mmcv", "Iter [", rf"\bIter \[{_STEP_OF}\]\s*lr:{_TIME}"),
    _row("detectron2", "iter: ", rf"\biter: {_STEP}  .{{0,200}}?loss{_TIME}", zero=True),
    _row("yolox", "iter: ", rf"\bepoch: (?P<epoch>\d+)/(?P<epochs>\d+), iter: {_N_OF}", base=1),
    _row("paddle", "global", rf"\bglobal[_ ]step:? {_STEP}, (?:lr|epoch)"),
    _row("paddle", "[TRAIN]", rf"\[TRAIN\] epoch: \d+, iter: {_STEP_OF}"),
    _row("paddle", "[Iter: ", rf"\[Train\]\[Epoch {_EPOCH_OF}\]\[Iter: {_N_OF}\]", zero=True, base=1),
    _row("position", "poch", rf"(?i)\bepoch{_POSITION}(?!.{{0,60}}\bval)(?={_LATER}(?:loss|\bacc|time:)){_TIME}",
         zero=True),
    _row("position", "rain", rf"(?i)\b(?:train|training){_POSITION}(?={_LATER}loss){_TIME}", zero=True),
    _row("nanodet", "|Epoch", rf"\bTrain\|Epoch{_EPOCH_OF}\|Iter\d+\((?P<n>\d+)/(?P<per>\d+)\)", base=1),
    _row("word language model", "batches", r"\bepoch\s+(?P<epoch>\d+) \|\s+(?P<n>\d+)/\s*(?P<per>\d+) batches", base=1),
    _row("ultralytics", "G  ", rf"^\s*{_EPOCH_OF}\s+[\d.]+G\s{_LATER}\s(?P<n>\d+)/(?P<per>\d+)(?:\s|$)"),
    _row("basicsr", "iter:", r"\[epoch:\s*\d+, iter:\s*(?P<step>[\d,]+)"),
    _row("cyclegan", ", iters: ", r"\(epoch: (?P<epoch>\d+), iters: (?P<n>\d+)", base=1),
    _row("stylegan", "kimg", rf"\btick {_STEP}\s+kimg", zero=True),
    _row("darts", "train ", r"\btrain (?P<n>\d{3,}) [\d.]+(?:e[+-]\d+)? [\d.]+ [\d.]+", zero=True),
    _row("maskrcnn", "raining time", r"\bTotal training time: \d"),
    _row("coqui", "GLOBAL_STEP", rf"\bGLOBAL_STEP: {_STEP}"),
    _row("vits", "====> Epoch", r"====> Epoch: (?P<epoch>\d+)", base=1),
    # general trainers
    _row("keras", "loss:", rf"^\s*{_N_OF} (?:\[[=>.]+\]|[━╸╺ ]{{3,}})"
         r"(?:.{0,40}?(?:(?P<s>\d+)s|(?P<ms>\d+)ms)/step)?.{0,99}? - .{0,400}?loss:", base=1),
    _row("keras", "loss:", rf"^\s*{_N_OF} - (?:(?P<s>\d+)s|\d+ms)(?:/epoch)? - .{{0,400}}?loss:", base=1),
    _row("keras", "val_", r"\bEpoch (?P<epoch>\d+): val_\w+ (?:improved|did not)", Rank.EPOCH, base=1),
    _row("lightning", "━", rf"\bEpoch (?P<epoch>\d+)/(?P<last>-?\d+)\s+[━╸╺ ]+\s{_N_OF}\b", base=0),
    _row("rich", "━", rf"(?i)\btrain[^━]{{0,60}}━[━╸╺ ]*[^━]{{0,12}}?\b{_N_OF}\b", Rank.BAR),
    _row("lightning", "Trainer.fit", r"`Trainer\.fit` stopped: `max_"),
    _row("tensorflow", "step", rf"\bloss = [-+\d.naife]+, step = {_STEP}"),
    _row("tensorflow", "lobal step", rf"\bglobal step {_STEP}: loss = \S+(?: \((?P<s>[\d.]+) sec/step)?"),
    _row("tensorflow", "per-step time", rf"\bStep {_STEP} per-step time (?P<s>[\d.]+)s"),
    _row("caffe", ", loss = ", rf"\bIteration {_STEP}(?: \([\d.]+ iter/s[^)]{{0,60}}\))?, loss = ", zero=True),
    _row("darknet", " avg loss", rf"^\s*{_STEP}: [\d.]+, [\d.]+ avg loss"),
    _row("mxnet", "atch", r"\bEpoch ?\[(?P<epoch>\d+)\] ?\[?Batch ?\[?(?:\d+-)?(?P<n>\d+)\]", base=0),
    _row("boosting", "]", rf"(?:^|\s)\[{_STEP}\]\s+[\w' @-]{{1,60}}(?::\s?|=)-?\d+\.\d", zero=True),
    _row("catboost", "learn: ", rf"^\s*{_STEP}:\s+learn: ", zero=True),
    _row("wandb", "wandb: ", r"^wandb:\s+(?!\S*(?:val|test))(?:\S*/)?\w*(?:loss|reward|return)\w* "
         r"(?:-?\d|[▁▂▃▄▅▆▇█]{2})"),
    # tutorials
    _row("loss at step", "oss", rf"\b{_MEASURE}\b[^:=]{{0,40}}?\b(?i:at|after|for|in) "
         rf"(?i:step|iter\w*|epoch|episode|update) ?{_STEP}\s?[:=] ?-?\d", Rank.STEP, zero=True),
    _row("cost after iteration", "ost after", rf"\b[Cc]ost after (?i:iteration|epoch) {_STEP}\s?[:=] ?-?\d", Rank.STEP,
         zero=True),
    _row("dcgan", "][", rf"(?:^|\s)\[{_EPOCH_OF}\]\[{_N_OF}\](?=.{{0,99}}?{_MEASURE})", Rank.STEP, zero=True),
    _row("keras-gan", "[D loss", rf"^\s*{_STEP} \[D loss: ", Rank.STEP, zero=True),
    _row("td3", "Episode Num", rf"\bTotal T: {_STEP} Episode Num: "),
    _row("torch-ac", "| FPS ", rf"\bU {_STEP} \| F \d+ \| FPS "),
    _row("an epoch that ended", "poch", rf"(?i)(?<!eval )\bepoch:? ?{_ENDED}", Rank.EPOCH, zero=True),
    _row("an episode that ended", "pisode", rf"(?i)(?<!eval )\bepisode:? ?{_ENDED}", Rank.EPOCH, zero=True),
    _row("a checkpoint", "av", r"^(?!.{0,200}?(?i:load|resum|restor|every)).{0,200}?\b[Ss]av(?:ed|ing)\b.{0,200}?"
         r"(?:step|iter|iteration|checkpoint)[ _=-]{1,5}(?P<step>\d+)\b", Rank.LOSS),
    _row("[1, 2000] loss", "] loss", r"\[(?P<epoch>\d+), {0,5}(?P<n>\d+)\] loss", Rank.STEP, base=1),
    _row("epoch1", "poch", rf"(?i:\bepoch)[_-]?(?P<epoch>\d+)\b(?={_LATER}{_MEASURE})(?!{_LATER}(?:\bload|resum|/))",
         Rank.EPOCH, zero=True),
    _row("chinese", "第", rf"第\s?{_STEP}(?:\s?[轮步]?\s?(?:/\s?共?|[(\uff08\uff0c,]\s?共)\s?(?P<total>\d+))?\s?"
         rf"(?:轮|步|次迭代|个?\s?(?i:epoch)|回合){_LATER}{_MEASURE}", Rank.STEP),
    *(_row("chinese", unit, rf"^(?:\[[^\]]{{1,40}}\])?\s*{_STEP}(?:\s?/\s?(?P<total>\d+))?\s?{unit}"
           rf"[\s,:|\uff0c\uff1a]{_LATER}(?:损失|奖励|(?i:loss|reward))\s?[=:\uff1a]?\s?-?\d", Rank.STEP)
      for unit in "轮步"),
    _row("over", "raining", r"(?i)\b(?:pre-?|fine-?)?training (?:run |loop )?(?:is |has )?"
         r"(?:complete|finished|done|ended)"
         r"|\bfinished training\b", Rank.NONE),
)

# Tables of bare numbers: the header that opens a table, and the format of its rows.
TABLE_FORMATS: tuple[tuple[re.Pattern[str], StepFormat], ...] = (
    (compile_lazily(r"^\s*Step \(% Done\)"), _row("nerfstudio", "%)", rf"^\s*{_STEP} \([\d.]+%\)\s+(?P<ms>[\d.]+) ms")),
    (compile_lazily(r"^\s*E\s+#\s+LOSS "), _row("spacy", " ", rf"^\s*\d+\s+{_STEP}(?:\s+\d+\.\d+){{2,}}\s*$")),
    (
        compile_lazily(r"^\s*epoch\s+(?:\w+\s+)?train_loss\s"),
        _row("fastai", " ", r"^\s*(?P<epoch>\d+)(?:\s+(?:-?\d+\.\d+|nan|#na#))+\s+(?:\d+:[\d:]+|\d+\.\d+)\s*$",
             zero=True),
    ),
    (
        compile_lazily(r"^\s*Iter\s+Train Loss\s"),
        _row("scikit-learn", " ", rf"^\s*{_STEP}(?:\s+-?\d+\.\d+)+\s+[\d.]+[smh]\s*$"),
    ),
)

_NUMBER = compile_lazily(r"[0-9]|[nN][aA][nN]|\binf\b")
_NO_NUMBER = compile_lazily(
    r"raining (?:is )?(?:comp|finish|done)|inished (?i:training)|Trainer\.fit|_loss  |LOSS |% Done|Train Loss "
    r"|Trial name"
)


# fmt: off
def may_show_progress(line: str) -> bool:
    """Whether ``line`` may show a step or a metric. Nearly every line is rejected here.

    Literals are three times faster than one pattern for all. They lack their first letter to match both cases.
    """
    return (
        "tep" in line or "oss" in line or "poch" in line or "it/s" in line or "s/it" in line or "iter" in line
        or "Iter" in line or "rain" in line or "eward" in line or "eturn" in line or "pisode" in line
        or "pdate" in line or "_rew" in line or "score" in line or "norm" in line or "fps" in line or "FPS" in line
        or "SPS" in line or "STEP" in line or "LOSS" in line or "learn:" in line or "kimg" in line or " Up. " in line
        or "[batch=" in line or "━" in line or "Trial " in line or "失" in line or "奖" in line
    ) and (_NUMBER.search(line) is not None or _NO_NUMBER.search(line) is not None)
