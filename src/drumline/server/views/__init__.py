"""What answers look like: models with every field described, from which clients' types are made."""
