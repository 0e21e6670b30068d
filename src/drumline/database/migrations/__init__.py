"""The database's history: one step a module, each up and down."""
