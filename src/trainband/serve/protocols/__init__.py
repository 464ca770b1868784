"""The protocols of requests and responses, one per file."""
