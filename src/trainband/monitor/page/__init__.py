"""The page on which a job is seen: an ASGI application, its server, and the files that a browser loads."""
