"""Who may ask, and from where: tokens and roles, Host and Origin, limits, headers, the log.

`gate` stands before the whole application, WebSockets among it, so that no route can be forgotten.
"""
