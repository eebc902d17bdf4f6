"""What is measured while parts of the product die, pause, run out of something, or are of another version."""
