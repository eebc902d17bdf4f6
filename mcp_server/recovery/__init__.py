"""Recovery: the policy of a run decides what follows a failed attempt."""
