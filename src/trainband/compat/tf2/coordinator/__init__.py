"""Parameter servers for scripts of version 2: the strategy, the coordinator, and the servers that it drives.

The servers are not those of `trainband.ps`, which hold one model with one optimizer, both known when the job begins,
for workers that run the script themselves. Here only the coordinator runs it, and makes variables and optimizers
whenever it likes. What both need is shared: the transport, the codec, and the verifying of update programs.
"""
