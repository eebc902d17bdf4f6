"""Parts that tools share: the call, its schema, its questions and its answers."""
