"""The contract of engines and front ends: reports, statistics, checkpoint orders, engine protocols."""
