"""What is measured or traced: the memory of a run before it starts, and beside it on a GPU."""
