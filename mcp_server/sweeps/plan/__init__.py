"""From a plan to the cells of a sweep: read, checked, rehearsed, and how long it takes."""
