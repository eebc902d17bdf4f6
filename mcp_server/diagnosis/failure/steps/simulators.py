"""Next steps after failures of simulators and of libraries for reinforcement learning."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

# First match wins: special before general.
# fmt: off
ROWS = (
    # --- rendering
    row("", r"MUJOCO_EGL_DEVICE_ID.{0,80}integer between (\d+) and (\d+).{0,40}got (\S{1,20}?)\.?$", "", "stop",
        "MUJOCO_EGL_DEVICE_ID is {2}, but EGL sees GPUs {0} to {1}: set it to one of these in env, then launch_run "
        "again."),
    row("", r"MUJOCO_EGL_DEVICE_ID", "", "stop",
        "robosuite wants MUJOCO_EGL_DEVICE_ID to be a number in CUDA_VISIBLE_DEVICES: set both in env, the latter to "
        "{{gpu_indices}}."),
    row("", r"OSMesa|osmesa", r"(?i:mujoco|robosuite|dm_control|libero|EGL|robomimic|OpenGL)", "stop",
        "OSMesa is set but not installed: install libosmesa6, or set MUJOCO_GL=egl and PYOPENGL_PLATFORM=egl, then "
        "launch_run again.", log=r"\b(?:MUJOCO_GL|PYOPENGL_PLATFORM)\W{1,4}osmesa\b"),
    row("cuda_error config_error python_error other segfault",
        r"(?i:\bvk::|vkCreate|vulkan|VkResult|(?:no|find a) (?:suitable )?render(?:ing)? device)"
        r"|ERROR_INCOMPATIBLE_DRIVER",
        "", "stop",
        "Vulkan does not work here: install the GPU's graphics driver and libvulkan1 (in a container, "
        "NVIDIA_DRIVER_CAPABILITIES=all)."),
    # --- Isaac
    row("", r"PyTorch was imported before isaacgym", "", "stop",
        "Import isaacgym before torch (and before all that imports torch) {at}, then launch_run again."),
    row("import_error", r"(libpython3\.\d+)\S*: cannot open shared object", "", "stop",
        "{0} is not found: set LD_LIBRARY_PATH=$CONDA_PREFIX/lib (the environment's own lib) in env, then launch_run "
        "again."),
    row("", r"[Rr]egular expressions? (?:are|is) not matched|[Nn]ot all regular expressions|Expected .{0,40}to match|"
        r"Failed to find .{0,40}prim", "", "stop",
        "No body or joint matches {0}: write a name of the asset, which has {1}, then launch_run again.",
        log=r"(?s)(?:regular expressions are correct"
        r"|expressions?)[^\n]{0,40}\n\s*(\S{1,60}?): \[\]\s+Available strings: "
        r"\[([^\]]{2,80})"),
    row("", r"No (?:joints|bodies) found .{0,80}expression: \[(.{2,90}?)\]", "", "stop",
        "No joint of the asset matches {0}: correct joint_names_expr of that actuator group, then launch_run again."),
    row("", r"Failed to create (?:rigid body|articulation|\w+ view) at: (\S{1,90}?)\.?(?: |$)", "", "stop",
        "There is no such physics body at {0}: correct prim_path, or the asset has no rigid body or articulation "
        "root there."),
    row("", r"(?:extension|dependency solver).{0,60}(?:failed|failure|resolve)|Failed to resolve extension", "", "stop",
        "Isaac's extensions do not fit together: install the Isaac Lab release that belongs to this Isaac Sim, then "
        "launch_run again."),
    row("", r"(?i)gym cuda error: invalid resource handle|GPU pipeline .{0,60}(?:not|disabled)", "", "retry_changed",
        "Isaac Gym and torch use different GPUs: change it to one, launch_run with gpus=1 and sim_device=rl_device="
        "cuda:0."),
    row("", r"(?i)PhysX error: .{0,80}(?:Narrowphase|Broadphase|cuEvent|solver).{0,40}(?:fail|700|719)|"
        r"Cuda context manager error", "", "retry_changed",
        "PhysX failed on the GPU, mostly for bodies that blow up: lower num_envs or the time step, and check masses "
        "and "
        "collisions."),
    row("", r"omni\.physx.{0,80}(?:64k|material limit)", "", "stop",
        "The scene has more than 64000 materials: randomize fewer of them (num_buckets), then launch_run again."),
    row("", r"Reference at '(refs/\S{1,60})' does not exist", "", "stop",
        "rsl_rl keeps the code's git state, and the repository has no commit on {0}: make one (git commit), then "
        "launch_run again."),
    row("", r"No (?:runs|checkpoints?|models?) .{0,20}(?:present |found )?in (?:the directory: )?'?([^'\n]{2,120}?)'? "
        r"(?:match|that match)\w*:? '?([^'\n]{1,60}?)'?\.?$", "", "stop",
        "{0} holds nothing that matches {1}: correct load_run and load_checkpoint, then launch_run again."),
    row("", r"KeyError: '(obs_groups|class_name|policy|rnd_cfg|symmetry_cfg)'", r"rsl_rl", "stop",
        "This rsl_rl wants {0} in the agent's configuration: align rsl-rl-lib with this Isaac Lab, or add it, then "
        "launch_run again."),
    row("", r"rnd_state|not found in infos\[", r"rsl_rl", "stop",
        "The environment gives no such observation group: align rsl-rl-lib with this Isaac Lab, then launch_run "
        "again."),
    row("", r"AssertionError\s*$", r"batch_size\s*%\s*(?:self\.)?minibatch_size", "stop",
        "minibatch_size must divide horizon_length x num_envs: change one of these in the training configuration, then "
        "launch_run again."),
    # --- MuJoCo
    row("", r"missing MuJoCo|mujoco_?py.{0,80}(?:not found|missing)|find the file here: (\S{1,80})", "", "stop",
        "mujoco-py needs MuJoCo 2.1 in ~/.mujoco/mujoco210: unpack it there, or use gymnasium's -v4 (or newer) tasks "
        "with `mujoco`."),
    row("", r"(?m)Missing path to your environment variable[\s\S]{0,300}?export LD_LIBRARY_PATH=\$\w+:(\S{2,100})",
        "", "stop", "mujoco-py wants its library path: add {0} to LD_LIBRARY_PATH in env, then launch_run again."),
    row("", r"Error opening file '(/[^']{2,300})'", "", "stop",
        "{0} does not exist on this host: correct the path of the model's XML or of its assets, then launch_run "
        "again."),
    row("", r"(?m)XML Error: .{0,60}unrecognized (attribute|element): '?([^'\n]{1,60})'?\s+"
        r"Element '[^'\n]{1,40}', (line \d+)", "", "stop",
        "MuJoCo's XML has an unknown {0} {1} ({2}): correct its name there, or update mujoco, then launch_run again."),
    row("", r"XML (?:Error|parse error)|ParseXML|Error: .{0,40}XML", "", "stop",
        "MuJoCo cannot read its model: correct the XML as the line says {at}, then launch_run again."),
    row("", r"EOF when reading a line", r"requires asset\(s\)|mani_skill", "stop",
        "ManiSkill's assets {0} are missing: python -m mani_skill.utils.download_asset NAME beforehand, then "
        "launch_run "
        "again.", log=r"requires asset\(s\) \[([^\]]{1,60})\]"),
    row("", r"(?i)SC2LaunchError|StarCraft ?II?.{0,60}not (?:installed|found)|SC2PATH", "", "stop",
        "StarCraft II is not there: install it (install_sc2.sh) and set SC2PATH in env to its directory, then "
        "launch_run "
        "again."),
    row("", r"(?i)time-?out .{0,40}waiting for the (?:simulator|server)|(?:environment"
        r"|simulator) took too long to respond", "",
        "retry_changed",
        "The simulator did not answer: see its own log, start it first (headless, -nographics), or raise its timeout "
        "and "
        "check its port."),
    row("", r"worker number (\d+) is still in use", "", "retry_other_port",
        "Unity's port of worker {0} is taken: launch_run again with another worker_id or base_port, or end the old "
        "one."),
    row("", r"Cannot load URDF|URDF file '([^']{1,200})' not found", "", "stop",
        "The URDF {1} is not found: p.setAdditionalSearchPath(pybullet_data.getDataPath()), or give its whole path "
        "{at}.",
        log=r"URDF file '([^']{1,200})' not found"),
    # --- tasks and spaces
    row("", r"[Nn]amespace ALE not found|ALE/\S+ .{0,40}(?:not found|doesn't exist)", "", "stop",
        "Atari is not registered: pip install \"gymnasium[atari]\", import ale_py and gym.register_envs(ale_py) {at}, "
        "then launch_run again."),
    row("", r"\b(?:Name|Namespace|Version)NotFound|[Ee]nvironment `?[\w/-]+`? (?:doesn't exist"
        r"|not found)", "",
     "stop",
     "The task is not registered: correct its name, or import the package that registers it {at}, then launch_run "
     "again.", unless=r"Did you mean"),
    row("", r"only supports .{0,60}Discrete.{0,60} as action spaces but (Box|MultiDiscrete|MultiBinary|Dict|Tuple)", "",
        "stop", "The algorithm needs discrete actions, the task has {0}: use one for that (PPO, SAC or TD3), or "
        "another "
        "task {at}."),
    row("", r"only supports .{0,60}Box.{0,60} as action spaces but (Discrete|MultiDiscrete|MultiBinary|Dict|Tuple)", "",
        "stop", "The algorithm needs continuous actions, the task has {0}: use one for that (PPO, DQN or A2C), or "
        "another "
        "task {at}."),
    row("", r"must use `?(MultiInputPolicy|CnnPolicy|MlpPolicy)`?", "", "stop",
        "Pass \"{0}\" as the policy {at}: the observation space needs it, then launch_run again."),
    row("", r"(Observation|Action) spaces? do(?:es)? not match: (.{3,60}?) != (.{3,60})$", "", "stop",
        "The checkpoint's {0} space is {1}, this task's {2}: use the task and wrappers of its training, or start "
        "without it."),
    row("", r"does not match the data type.{0,80}Expected: (\w+), actual dtype: (\w+)", "", "stop",
        "The environment returns {1} where its space says {0}: cast the observation (.astype(np.{0})) in it, then "
        "launch_run again."),
    row("", r"[Oo]bservation .{0,80}(?:does not match|not within|isn't in|outside).{0,60}space", "", "stop",
        "An observation does not fit observation_space {at}: correct the dtype, bounds or shape of either, then "
        "launch_run again."),
    row("python_error other killed ray_error", r"^(?:EOFError|BrokenPipeError|ConnectionResetError)",
        r"subproc_vec_env|vector[/\\]async|ShmemVecEnv|SubprocVecEnv", "retry_changed",
        "An environment's process ended without a word, often for memory (dmesg -T): fewer environments; DummyVecEnv "
        "shows its error."),
    row("oom_host", r"[Uu]nable to allocate ([\d.]+ ?[KMGTP]i?B).{0,200}data type uint8|Dict\w*ReplayBuffer",
        r"(?i)replay|buffers?\.py", "retry_changed",
        "The replay buffer wants {0}: lower buffer_size, or store smaller observations (images resized), then "
        "launch_run again."),
    row("oom_host", r"[Uu]nable to allocate ([\d.]+ ?[KMGTP]i?B)", r"(?i)replay|buffers?\.py", "retry_changed",
        "The replay buffer wants {0}: lower buffer_size, store uint8 frames, or optimize_memory_usage=True in Stable "
        "Baselines3."),
    row("", r"takes? \d+ positional arguments?|unexpected keyword argument '(seed|options|render_mode)'",
        r"env\w*\.(?:reset|step|render)\(|gymnasium|\bgym\b.{0,40}reset", "stop",
        "The environment has the old gym interface: give reset(seed, options) and five values of step, or wrap it with "
        "shimmy {at}."),
    # --- a policy that became NaN
    row("divergence", r"(?:normal expects all elements of std|Real\(\)|found invalid values|[Nn]an.{0,40}"
        r"(?:action|polic|obs))", r"(?i)rsl_rl|skrl|stable_baselines3|cleanrl|rl_games|isaac|gymnasium|env\.step"
        r"|runner\.learn",
        "stop", "The policy became NaN: clip or normalize rewards and observations, lower the learning rate and "
        "max_grad_norm, and resume from before it."),
)
# fmt: on
