"""The parameter server: its shards of the variables, the update rules, and both ends of the exchange."""
