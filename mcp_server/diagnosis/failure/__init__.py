"""Why a run failed: the kind of failure and the log line that proves it."""
