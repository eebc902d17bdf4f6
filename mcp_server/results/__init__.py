"""Results of ended runs: metrics, evaluations, checkpoints, comparison."""
