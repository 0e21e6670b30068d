"""The live feed: one WebSocket on which a client follows any number of channels.

`hub` and `channel` are the feed without a transport, `requests` what clients may ask, `admission`
how connections are spread, `feed` the connections, `serving` the server that says goodbye. The
protocol is told in docs/live.md.
"""
