"""Workers that compute in lockstep, without a ps, in the simulator."""
