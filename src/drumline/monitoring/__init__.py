"""What the devices did over time: sampling, history, rollups and means over devices."""
