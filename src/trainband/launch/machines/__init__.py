"""Where the tasks of a supervised job run: this machine, or others."""
