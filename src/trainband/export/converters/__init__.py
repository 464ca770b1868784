"""Converters: what runs in an environment of its own, because its libraries are large or go with no others.

The scripts here are run by the Python of that environment, and import only what is installed there.
"""
