"""Workers that compute in step, without a ps, in the simulator."""
