"""A task's identity, its proof, and the encryption of connections."""
