"""The thread and the sockets of a replica."""
