"""What is trained. Each task is a folder; a config names it, an entry point finds it."""
