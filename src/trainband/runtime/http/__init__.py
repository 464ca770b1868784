"""The HTTP server of the page and the inference server: access, limits, and its thread."""
