"""The command line, one command a file. `main` is what the program `trainband` runs."""
