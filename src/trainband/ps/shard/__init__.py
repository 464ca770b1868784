"""One shard: its values, the updater, and the saver."""
