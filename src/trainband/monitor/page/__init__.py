"""The page that shows a job: an ASGI application, its server, and the files that a browser loads."""
