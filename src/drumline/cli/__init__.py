"""The terminal: commands, the live display, lists of runs. Imports the floors below only when a
command needs them, so that help and completion answer at once.
"""
