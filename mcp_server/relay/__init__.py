"""A program on a far host that serves one server elsewhere over the stdin and stdout of an ssh process."""
