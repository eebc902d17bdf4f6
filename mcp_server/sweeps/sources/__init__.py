"""Where the cells of a sweep come from: tasks of doit, configs of Hydra programs."""
