"""What the devices did over time: sampling, history, rollups and means over devices.

`monitor` puts the parts together for one host; `sampler` reads, `history` keeps, `inventory` knows
hosts and devices, `aggregate` makes one line of many devices, `bus` passes on to who watches.
"""
