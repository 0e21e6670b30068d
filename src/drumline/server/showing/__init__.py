"""From what services answer to the models of `views`, which the API shows. Pure functions."""
